"""Claims that no experiment of the testbed answers, tested on predictions at full scale.

Each is a small function of the model's parameters, which may be columns of draws; none knows a
published number. What a document does not state and a prediction needs is its `assumption`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from repro.catalog.clusters import cluster
from repro.catalog.models import Model, Shape, model
from repro.catalog.protocols import protocol
from repro.predict.draws import draw_parameters
from repro.predict.machine import Machine, machine
from repro.predict.memory import FRAMEWORK_BYTES
from repro.predict.parameters import Parameters, calibration
from repro.predict.quantities import MEMORY, quantities
from repro.predict.volumes import gradient_bytes
from repro.predict.workload import Array, Plan, workload

Compute = Callable[[Parameters], Array]

_MODELS = ("gpt2-medium", "gpt2-large", "bert-large", "t5-large")
# The papers do not state it for pipelines; weak scaling has 4 sequences.
_PIPELINE_MICRO_BATCH = 4


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


def _shape(name: str, pipeline: bool) -> tuple[Model, Shape]:
    entry = model(name)
    return entry, (entry.pipeline or entry.full) if pipeline else entry.full


def _run(
    name: str, plan: Plan, where: Machine, parameters: Parameters, pipeline: bool = False
) -> dict[str, Array]:
    entry, shape = _shape(name, pipeline)
    flat, _ = workload(entry.family, shape, plan).flat()
    return quantities(flat, where, parameters)


def _on_a(parameters: Parameters, transport: str = "rdma") -> Machine:
    return machine(cluster("pinnacles"), parameters, protocol(transport))


def _stack(values: Sequence[Any]) -> Array:
    """Arrays of different models on a new first axis."""
    return np.stack(np.broadcast_arrays(*values))


def _every(conditions: Sequence[Any], axis: int | tuple[int, ...]) -> Array:
    """Whether all conditions, one per model, hold."""
    return np.asarray(_stack(conditions).all(axis=axis))


def _share(run: dict[str, Array]) -> Array:
    """Communication fraction of data parallelism, as the papers' timer has it."""
    return np.asarray((run["gradient_sync"] + run["straggler_wait"]) / run["iteration_time_s"])


# Data parallelism with growing batches on 8 GPUs of cluster A.

_MICRO_BATCHES = np.arange(1, 257)


def _batch_sweep(name: str, parameters: Parameters) -> tuple[Array, Array]:
    """Share of communication by micro batch size, and where the GPU's memory is enough."""
    where = _on_a(parameters)
    plan = Plan(
        global_batch_size=8 * _MICRO_BATCHES, micro_batch_size=_MICRO_BATCHES, data_parallel=8
    )
    run = _run(name, plan, where, parameters)
    used = _stack([run[part] for part in MEMORY]).sum(axis=0)
    fits = used + FRAMEWORK_BYTES <= where.gpu.memory_gb * 1e9
    return _share(run), fits


def _largest_micro_batch(name: str, parameters: Parameters) -> Array:
    _, fits = _batch_sweep(name, parameters)
    return np.array(float(_MICRO_BATCHES[fits].max(initial=0)))


def _lowest_share(parameters: Parameters) -> Array:
    """Of all models but BERT-Large: the share at the largest batch that fits, in percent."""
    shares = []
    for name in _MODELS:
        if name != "bert-large":
            share, fits = _batch_sweep(name, parameters)
            shares.append(share[..., int(np.flatnonzero(fits).max(initial=0))])
    return np.asarray(100 * _stack(shares).min(axis=0))


def _share_falls_with_batch(parameters: Parameters) -> Array:
    falls = []
    for name in _MODELS:
        share, fits = _batch_sweep(name, parameters)
        falls.append((np.diff(share[..., fits], axis=-1) < 0).all(axis=-1))
    return _every(falls, axis=0)


def _bert_fits_most(parameters: Parameters) -> Array:
    others = [_largest_micro_batch(n, parameters) for n in _MODELS if n != "bert-large"]
    return np.array(_largest_micro_batch("bert-large", parameters) > 2 * max(others))


# Pipelines on cluster A: 2, 4 and 8 stages, batches in proportion.

_STAGES = np.array([2, 4, 8])


def _pipeline(
    name: str,
    parameters: Parameters,
    transport: str = "rdma",
    batches: Array | None = None,
    stages: Array = _STAGES,
) -> dict[str, Array]:
    usual = (8 if name == "gpt2-large" else 16) * stages
    plan = Plan(
        global_batch_size=usual if batches is None else batches,
        micro_batch_size=_PIPELINE_MICRO_BATCH,
        pipeline_parallel=stages,
    )
    return _run(name, plan, _on_a(parameters, transport), parameters, pipeline=True)


def _pipeline_share(run: dict[str, Array]) -> Array:
    """As the paper's timers have it: receives contain the fill, the embedding sync the drain."""
    waiting = run["forward_receive"] + run["pipeline_bubble"] + run["embedding_sync"]
    return np.asarray(waiting / run["iteration_time_s"])


def _pipeline_gain(transport: str) -> Compute:
    """Mean iteration-time ratio over models, at 4 and 8 GPUs (2 are one node)."""

    def gain(parameters: Parameters) -> Array:
        ratios = [
            (
                _pipeline(name, parameters, transport)["iteration_time_s"]
                / _pipeline(name, parameters)["iteration_time_s"]
            )[..., 1:]
            for name in _MODELS
        ]
        return np.asarray(_stack(ratios).mean(axis=(0, -1)))

    return gain


def _largest_pipeline_share(parameters: Parameters) -> Array:
    shares = [_pipeline_share(_pipeline(name, parameters, "tcp")) for name in _MODELS]
    return np.asarray(100 * _stack(shares).max(axis=(0, -1)))


def _pipeline_compute(name: str, parameters: Parameters) -> Array:
    run = _pipeline(name, parameters)
    return np.asarray(run["forward_compute"] + run["backward_compute"])


def _compute_rises(parameters: Parameters) -> Array:
    rises = [np.diff(_pipeline_compute(name, parameters)) > 0 for name in _MODELS]
    return _every(rises, axis=(0, -1))


def _t5_waits_most(parameters: Parameters) -> Array:
    shares = {name: _pipeline_share(_pipeline(name, parameters))[..., -1] for name in _MODELS}
    others = _stack([share for name, share in shares.items() if name != "t5-large"])
    return np.asarray((shares["t5-large"] > others).all(axis=0))


def _pipeline_times_ordered(parameters: Parameters) -> Array:
    ordered = []
    for name in _MODELS:
        times = [
            _pipeline(name, parameters, transport)["iteration_time_s"][..., -1]
            for transport in ("rdma", "ipoib", "tcp")
        ]
        ordered.append((times[0] < times[1]) & (times[1] < times[2]))
    return _every(ordered, axis=0)


def _four_terms_dominate(parameters: Parameters) -> Array:
    dominate = []
    for name in _MODELS:
        run = _pipeline(name, parameters)
        four = run["forward_compute"] + run["backward_compute"]
        four = four + _pipeline_share(run) * run["iteration_time_s"]
        dominate.append((four > 0.5 * run["iteration_time_s"]).all(axis=-1))
    return _every(dominate, axis=0)


def _shares_by_batch(name: str, parameters: Parameters, stages: int) -> Array:
    batches = np.array([16, 32, 64, 128])
    run = _pipeline(name, parameters, batches=batches, stages=np.full(4, stages))
    return _pipeline_share(run)


def _share_rises_with_batch(parameters: Parameters) -> Array:
    rises = [np.diff(_shares_by_batch(name, parameters, 8)) > 0 for name in _MODELS]
    return _every(rises, axis=(0, -1))


def _share_falls_with_gpus(parameters: Parameters) -> Array:
    falls = []
    for name in _MODELS:
        run = _pipeline(name, parameters, batches=np.full(3, 64))
        falls.append(np.diff(_pipeline_share(run)) < 0)
    return _every(falls, axis=(0, -1))


def _share_floor(batch: int) -> Compute:
    def floor(parameters: Parameters) -> Array:
        shares = [
            _pipeline_share(_pipeline(name, parameters, batches=np.full(3, batch)))
            for name in _MODELS
        ]
        return np.asarray(100 * _stack(shares).min(axis=(0, -1)))

    return floor


def _pipelines_scale_worse(parameters: Parameters) -> Array:
    """Computing per sequence grows with stages, while data parallelism keeps it (weak scaling)."""
    growth = [
        _pipeline_compute(name, parameters)[..., -1] / _pipeline_compute(name, parameters)[..., 0]
        for name in _MODELS
    ]
    return np.asarray((_stack(growth) > 1).all(axis=0))


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
    return _every(more, axis=0)


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


_PIPELINE_NOTE = f"micro batch {_PIPELINE_MICRO_BATCH} assumed; the paper does not state it"
_REPORT_NOTE = "micro batch 4 and 1024 tokens assumed; the report does not state them"
_on_b = partial(Predicted, cluster="cluster-b", assumption="one 100 Gbit/s port a node assumed")
_on_big_red = partial(Predicted, cluster="big-red-200")

_GROUPS: dict[tuple[str, ...], Predicted] = {
    ("C028", "C104"): Predicted(_lowest_share, 50.0),
    ("C029", "C105"): Predicted(_share_falls_with_batch),
    ("C034", "C118"): Predicted(_pipeline_gain("ipoib"), 1.0, assumption=_PIPELINE_NOTE),
    ("C035", "C119"): Predicted(_pipeline_gain("tcp"), 1.0, assumption=_PIPELINE_NOTE),
    ("C041",): Predicted(_largest_pipeline_share, 50.0, assumption=_PIPELINE_NOTE),
    ("C043", "C113"): _on_b(_share_on_b, 50.0),
    ("C095",): Predicted(_four_terms_dominate),
    ("C096", "C103"): Predicted(_compute_rises),
    ("C101",): Predicted(_t5_waits_most),
    ("C102",): Predicted(_pipeline_times_ordered),
    ("C106",): Predicted(_bert_fits_most),
    ("C107",): Predicted(_share_rises_with_batch),
    ("C108",): Predicted(_share_falls_with_gpus),
    ("C109",): Predicted(_share_floor(64), assumption=_PIPELINE_NOTE),
    ("C110",): Predicted(_share_floor(128), assumption=_PIPELINE_NOTE),
    ("C112",): Predicted(
        lambda p: 8 * _largest_micro_batch("gpt2-large", p),
        assumption="no recomputation assumed; selective recomputation would fit more",
    ),
    ("C114",): Predicted(_same_share_on_b),
    ("C115",): Predicted(_pipelines_scale_worse),
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
