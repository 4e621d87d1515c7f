"""Claims that no experiment of the testbed answers, tested on predictions at full scale.

Each is a small function of the model's parameters, which may be columns of draws; none knows a
published number. What a document does not state and a prediction needs is its `assumption`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from repro.catalog.clusters import cluster
from repro.catalog.models import model
from repro.catalog.protocols import protocol
from repro.predict.draws import draw_parameters
from repro.predict.machine import Machine, machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.quantities import quantities
from repro.predict.volumes import gradient_bytes
from repro.predict.workload import Array, Plan, workload

Compute = Callable[[Parameters], Array]

_MODELS = ("gpt2-medium", "gpt2-large", "bert-large", "t5-large")


@dataclass(frozen=True)
class Predicted:
    """A claim's quantity or statement as a function of the model's parameters.

    `neutral` is the value at which the claim would say nothing; `cluster` names the machine whose
    calibration is drawn from; `assumption` is what the document does not state.
    """

    compute: Compute
    neutral: float | None = None
    cluster: str = "pinnacles"
    assumption: str = ""

    def evaluate(self) -> tuple[float, Array]:
        """The value, and one of each draw of the parameters."""
        entry = cluster(self.cluster)
        fitted = calibration(entry.calibration)
        value = float(np.squeeze(self.compute(fitted.parameters)))
        return value, np.ravel(self.compute(draw_parameters(fitted, entry)))


def _run(name: str, plan: Plan, where: Machine, parameters: Parameters) -> dict[str, Array]:
    entry = model(name)
    flat, _ = workload(entry.family, entry.full, plan).flat()
    return quantities(flat, where, parameters)


def _on_a(parameters: Parameters, transport: str = "rdma") -> Machine:
    return machine(cluster("pinnacles"), parameters, protocol(transport))


def _share(run: dict[str, Array]) -> Array:
    """Communication fraction of data parallelism, as the papers' timer has it."""
    return np.asarray((run["gradient_sync"] + run["straggler_wait"]) / run["iteration_time_s"])


# GPT-2-Large on 16 GPUs of cluster B.


def _share_at_limit(where: Machine, gpus: int, parameters: Parameters) -> Array:
    """In percent, with the micro batch of 12 that the paper found to be the largest."""
    plan = Plan(global_batch_size=12 * gpus, micro_batch_size=12, data_parallel=gpus)
    return 100 * _share(_run("gpt2-large", plan, where, parameters))


def _share_on_b(parameters: Parameters) -> Array:
    return _share_at_limit(machine(cluster("cluster-b"), parameters), 16, parameters)


def _same_share_on_b(parameters: Parameters) -> Array:
    on_a = _share_at_limit(_on_a(parameters), 8, parameters)
    return np.asarray(np.abs(_share_on_b(parameters) / on_a - 1) < 0.1)


def _communication_predominates(parameters: Parameters) -> Array:
    """More than half of the iteration, from 2 GPUs of cluster A to 16 of cluster B."""
    gpus = np.array([2, 4, 8])
    plan = Plan(global_batch_size=4 * gpus, micro_batch_size=4, data_parallel=gpus)
    more = [(_share_on_b(parameters) > 50).all(axis=-1)]
    for name in _MODELS:
        run = _run(name, plan, _on_a(parameters), parameters)
        more.append((_share(run) > 0.5).all(axis=-1))
    return np.asarray(np.stack(np.broadcast_arrays(*more)).all(axis=0))


# GPT-350M with the distributed optimizer on Big Red 200.


def _gpt350m(parameters: Parameters, gpus: int, micro_batch: int = 4) -> dict[str, Array]:
    where = machine(cluster("big-red-200"), parameters)
    plan = Plan(
        global_batch_size=micro_batch * gpus,
        micro_batch_size=micro_batch,
        data_parallel=gpus,
        distributed_optimizer=True,
    )
    return _run("gpt2-medium", plan, where, parameters)


def _gradient_megabytes(_: Parameters) -> Array:
    entry = model("gpt2-medium")
    return np.array([gradient_bytes(entry.family, entry.full, 2) / 1e6])


def _collective_ms(gpus: int) -> Compute:
    return lambda parameters: 1e3 * _gpt350m(parameters, gpus)["parameter_all_gather"]


def _collective_busbw(gpus: int) -> Compute:
    def busbw(parameters: Parameters) -> Array:
        seconds = _gpt350m(parameters, gpus)["parameter_all_gather"]
        return np.asarray(_gradient_megabytes(parameters) / 1e3 * (gpus - 1) / gpus / seconds)

    return busbw


def _gpt350m_share(parameters: Parameters, gpus: int = 8) -> Array:
    run = _gpt350m(parameters, gpus)
    share: Array = (
        100 * (run["gradient_sync"] + run["parameter_all_gather"]) / run["iteration_time_s"]
    )
    return share


def _slower_between_nodes(parameters: Parameters) -> Array:
    return np.asarray(_collective_ms(8)(parameters) > _collective_ms(4)(parameters))


def _share_small_on_one_node(parameters: Parameters) -> Array:
    return np.asarray(_gpt350m_share(parameters, 4) < 10)


def _compute_constant(parameters: Parameters) -> Array:
    times = [_gpt350m(parameters, gpus)["forward_compute"] for gpus in (1, 8)]
    return np.asarray(np.abs(times[1] / times[0] - 1) < 0.1)


def _tokens(parameters: Parameters, gpus: int) -> Array:
    return _gpt350m(parameters, gpus)["tokens_per_s_per_gpu"]


_REPORT_NOTE = "micro batch 4 and 1024 tokens assumed; the report does not state them"
_on_big_red = partial(Predicted, cluster="big-red-200")

_GROUPS: dict[tuple[str, ...], Predicted] = {
    ("C114",): Predicted(_same_share_on_b),
    ("C120",): Predicted(_communication_predominates),
    ("C122",): _on_big_red(_gradient_megabytes),
    ("C123", "C124"): _on_big_red(_collective_ms(4)),
    ("C125",): _on_big_red(_collective_busbw(4)),
    ("C126",): _on_big_red(_collective_busbw(8)),
    ("C127",): _on_big_red(_collective_ms(8)),
    ("C128",): _on_big_red(_slower_between_nodes),
    ("C129",): _on_big_red(_share_small_on_one_node),
    ("C130",): _on_big_red(_compute_constant),
    ("C131",): _on_big_red(_gpt350m_share, 50.0, assumption=_REPORT_NOTE),
    ("C133",): _on_big_red(lambda p: np.abs(_tokens(p, 4) / _tokens(p, 1) - 1) < 0.1),
    ("C134",): _on_big_red(lambda p: _tokens(p, 8) < _tokens(p, 4)),
}

PREDICTIONS: dict[str, Predicted] = {
    claim: predicted for claims, predicted in _GROUPS.items() for claim in claims
}
