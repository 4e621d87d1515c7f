"""Claims that no experiment of the testbed answers, tested on predictions at full scale.

Each is a small function of the model's parameters, which may be columns of draws; none knows a
published number. What a document does not state and a prediction needs is its `assumption`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from repro.catalog.models.papers import model
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, gradient_bytes
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import protocol
from repro.collectives.definitions import busbw_GBps
from repro.paths import PUBLISHED
from repro.predict.calibration.interval import draw_parameters
from repro.predict.memory import MIXED
from repro.predict.network.links import predict_collective
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.quantities import quantities
from repro.predict.workload import Array, Plan, workload

Compute = Callable[[Parameters], Array]

# The report prints four digits.
_ROUNDING = 5e-4
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


# Big Red 200: arithmetic on what the report states, and what NCCL does elsewhere.


def _gradient_megabytes(_: Parameters) -> Array:
    entry = model("gpt-350m")
    return np.array([gradient_bytes(entry.family, entry.full, FULL_ELEMENT_BYTES) / 1e6])


def _adam_bytes(_: Parameters) -> Array:
    return np.array([float(MIXED.moments)])


def _table_is_consistent(_: Parameters) -> Array:
    """Whether the printed bus bandwidths are those of the printed times."""
    rows = pd.read_csv(PUBLISHED / "nccl_bigred200.csv")
    same = []
    for side in ("inter", "intra"):
        seconds = rows[f"{side}_time_us"] * 1e-6
        computed = busbw_GBps("all_reduce", rows[f"{side}_n"], rows.size_bytes, seconds)
        printed = rows[f"{side}_busbw_GBps_reported"]
        same.append(np.allclose(computed, printed, rtol=_ROUNDING))
    return np.array([all(same)])


def _busbw_elsewhere(gpus: int, nodes: int, network: str, at: int) -> Compute:
    """Bus bandwidth of an all-reduce of the table's first or last size on another network."""
    size = pd.read_csv(PUBLISHED / "nccl_bigred200.csv").size_bytes.iloc[[at]]
    row = pd.DataFrame(
        {
            **{"gpu": "A100", "network": network, "collective": "all_reduce"},
            **{"ranks": gpus, "nodes": nodes, "size_bytes": size},
        }
    )

    def busbw(parameters: Parameters) -> Array:
        found = predict_collective(row)
        error = np.exp(-found.half_width.to_numpy() * parameters.network_error)
        return busbw_GBps("all_reduce", gpus, size, found.time_s) * error

    return busbw


def _peak_pflops(_: Parameters) -> Array:
    """Double precision: cores x 16 a cycle (two 256-bit FMA units) x clock, and 9.7e12 an A100."""
    cpus = 640 * 2 * 64 * 16 * 2.25e9 + 64 * 64 * 16 * 2.0e9
    return np.array([(cpus + 64 * 4 * 9.7e12) / 1e15])


_SMALLEST, _LARGEST = 0, -1
_NVLINK, _BY_RATE = "NVLink", "100 Gb/s per node"
_OTHERS = "predicted from other networks; its own table is what the cluster is calibrated with"
_SHEETS = "data sheets (EPYC 7742 and 7713, A100); 8.1 with the A100's FP64 tensor cores"
_on_big_red = partial(Predicted, cluster="big-red-200")

_GROUPS: dict[tuple[str, ...], Predicted] = {
    ("C114",): Predicted(_same_share_on_b),
    ("C120",): Predicted(_communication_predominates),
    ("C122",): _on_big_red(_gradient_megabytes),
    ("C135",): _on_big_red(_adam_bytes),
    ("C136",): _on_big_red(_table_is_consistent, assumption="arithmetic on the table"),
    ("C137",): _on_big_red(_busbw_elsewhere(8, 2, _BY_RATE, _SMALLEST), assumption=_OTHERS),
    ("C138",): _on_big_red(_busbw_elsewhere(8, 2, _BY_RATE, _LARGEST), assumption=_OTHERS),
    ("C139",): _on_big_red(_busbw_elsewhere(4, 1, _NVLINK, _SMALLEST), assumption=_OTHERS),
    ("C140",): _on_big_red(_busbw_elsewhere(4, 1, _NVLINK, _LARGEST), assumption=_OTHERS),
    ("C141",): _on_big_red(_peak_pflops, assumption=_SHEETS),
}

PREDICTIONS: dict[str, Predicted] = {
    claim: predicted for claims, predicted in _GROUPS.items() for claim in claims
}
