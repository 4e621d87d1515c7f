"""What the performance model says of each configuration of an experiment's model on one machine.

Data parallelism is one evaluation of all configurations, for its phases are closed forms; pipelines
are run one by one. Both give the same quantities by name, with the axes of `QUANTITIES`, of
which the last are draws of parameters (a single one without any).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from repro.catalog.models.papers import Model
from repro.catalog.phases import PHASES
from repro.catalog.studies.selection import Selection
from repro.errors import ReproError
from repro.predict.network.machine import Machine
from repro.predict.parameters import Parameters
from repro.predict.step.memory import FRAMEWORK_BYTES
from repro.predict.step.pipeline_iteration import PipelineIteration, predict_pipeline
from repro.predict.step.quantities import MEMORY, quantities
from repro.predict.workload import Array, Plan, workload


@dataclass(frozen=True)
class Quantity:
    """The axes of a quantity of one configuration, and its unit."""

    dims: tuple[str, ...]
    units: str
    long_name: str
    pipelines_only: bool = False


_RATES = ("node", "resample")
_TIMES = ("rank", "timer", "resample")
QUANTITIES = {
    "iteration_time_s": Quantity(("rank", "resample"), "s", "iteration time"),
    "phase_time_s": Quantity(("rank", "phase", "resample"), "s", "time in phase"),
    "rx_iteration_full_scale_gbps": Quantity(_RATES, "Gbit/s", "mean rate received by the NICs"),
    "tx_iteration_full_scale_gbps": Quantity(_RATES, "Gbit/s", "mean rate sent by the NICs"),
    "memory_bytes": Quantity(("resample",), "B", "memory of the fullest GPU"),
    "p2p_time_s": Quantity(_TIMES, "s", "time in Megatron's timer", pipelines_only=True),
    "p2p_wire_s": Quantity(
        _TIMES, "s", "of that, time in which a message was under way", pipelines_only=True
    ),
    "p2p_bytes_sent": Quantity(
        ("rank", "resample"), "B", "messages to neighbouring stages", pipelines_only=True
    ),
}

# What of a data-parallel iteration belongs to each phase; the others take no time there.
_DATA_PARALLEL = {
    "forward compute": ("forward_compute",),
    "backward compute": ("backward_compute", "recompute"),
    "straggler wait": ("straggler_wait",),
    "gradient sync": ("gradient_sync",),
    "optimizer": ("optimizer",),
    "parameter all-gather": ("parameter_all_gather",),
    "other": ("other",),
}


@dataclass(frozen=True)
class Configuration:
    """A number of GPUs and how they are used; `value` is that of what is swept."""

    gpus: int
    value: int | None
    plan: Plan


def configurations(selection: Selection, model: str) -> list[Configuration]:
    """Those of one model whose batch divides."""
    chosen = selection.experiment
    found = []
    for gpus in selection.gpus:
        stages = chosen.stages(gpus)
        for value, batch in selection.batches(model, gpus).items():
            plan = Plan(
                global_batch_size=batch.global_batch_size,
                micro_batch_size=batch.micro_batch_size,
                # Pipelines, or GPUs of data parallelism.
                data_parallel=gpus // stages,
                pipeline_parallel=stages,
                distributed_optimizer=chosen.distributed_optimizer,
            )
            found.append(Configuration(gpus, value, plan))
    return found


def predict_data_parallel(
    studied: Model, asked: Sequence[Configuration], machine: Machine, parameters: Parameters
) -> Iterator[tuple[Configuration, dict[str, Array]]]:
    """Data parallelism; one rank and one node stand for all."""
    columns = {
        field.name: np.array([getattr(one.plan, field.name) for one in asked])
        for field in fields(Plan)
    }
    shape = studied.full_size(pipeline=False)
    rows, _ = workload(studied.family, shape, Plan(**columns)).flat()
    predicted = quantities(rows, machine, parameters)
    time = np.atleast_2d(predicted["iteration_time_s"])
    phases = np.zeros((len(PHASES), *time.shape))
    for phase, parts in _DATA_PARALLEL.items():
        phases[PHASES.index(phase)] = sum(predicted[part] for part in parts)
    # A ring sends as much as it receives.
    rate = np.broadcast_to(predicted["fabric_gbps"], time.shape)
    memory = sum((predicted[part] for part in MEMORY), np.array(FRAMEWORK_BYTES))
    for row, one in enumerate(asked):
        found = {
            "iteration_time_s": time[None, :, row],
            "phase_time_s": phases[None, :, :, row],
            "rx_iteration_full_scale_gbps": rate[None, :, row],
            "tx_iteration_full_scale_gbps": rate[None, :, row],
            "memory_bytes": memory[[row]],
        }
        yield one, found


def predict_pipelines(
    studied: Model, asked: Sequence[Configuration], machine: Machine, parameters: Parameters
) -> Iterator[tuple[Configuration, dict[str, Array]]]:
    """Pipelines, every rank and node of each run; what does not divide into stages is left out."""
    shape = studied.full_size(pipeline=True)
    for one in asked:
        w = workload(studied.family, shape, one.plan)
        try:
            found = predict_pipeline(w, machine, parameters)
        except ReproError:
            continue
        yield one, _quantities(found, int(w.data_parallel))


def _quantities(found: PipelineIteration, replicas: int) -> dict[str, Array]:
    """Stages' quantities on the ranks of all replicas."""
    by_stage = {
        "iteration_time_s": np.broadcast_to(found.time_s, found.timeline.end_s.shape),
        "phase_time_s": found.phases_s,
        "p2p_time_s": found.timeline.timer_s,
        "p2p_wire_s": found.timeline.wire_s,
        "p2p_bytes_sent": found.sent_bytes,
    }
    computed = {name: np.repeat(values, replicas, axis=0) for name, values in by_stage.items()}
    for way, carried in (("rx", found.nic_received_bytes), ("tx", found.nic_sent_bytes)):
        rate = 8e-9 * np.multiply.outer(carried, 1 / found.time_s)
        computed[f"{way}_iteration_full_scale_gbps"] = rate
    computed["memory_bytes"] = np.array(found.memory_bytes)
    return {
        name: values if values.ndim == len(QUANTITIES[name].dims) else values[..., None]
        for name, values in computed.items()
    }
