"""Weak scaling beyond the papers: more nodes of cluster B, and larger models, predicted."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import xarray as xr
from pydantic import PositiveInt

from repro.catalog.models.papers import Shape, model
from repro.catalog.phases import PHASES
from repro.catalog.reading import Entry, read_params
from repro.catalog.studies.experiments import experiment
from repro.catalog.systems.clusters import Cluster, cluster
from repro.errors import ReproError
from repro.predict.calibration.interval import LEVEL, draw_parameters, without_columns
from repro.predict.network.machine import machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.pipeline_iteration import predict_pipeline
from repro.predict.step.stages import check_stages, fullest_gpu_bytes
from repro.predict.workload import Plan, Workload, workload

# What the paper trained on cluster B, and trains on here first.
_PAPERS = "gpt2-large"
# All in which a rank waits for others or sends: the pipeline's fill and drain count.
_COMMUNICATION = (
    "forward receive",
    "backward receive",
    "send",
    "straggler wait",
    "embedding sync",
    "gradient sync",
    "parameter all-gather",
)
_VARIABLES = {
    "iteration_time_s": ("s", "iteration time"),
    "iteration_time_low_s": ("s", f"iteration time, lower end of the {LEVEL:.0%} interval"),
    "iteration_time_high_s": ("s", f"iteration time, upper end of the {LEVEL:.0%} interval"),
    "communication_fraction": ("1", "share of the iteration in which a GPU waits or sends"),
    "weak_scaling_efficiency": ("1", "time on the fewest GPUs over time on so many"),
    "tokens_per_s_per_gpu": ("1/s", "tokens per second and GPU"),
    "pipeline_parallel": ("1", "pipeline stages"),
    "micro_batch_size": ("1", "sequences in a micro batch"),
    "global_batch_size": ("1", "sequences in an iteration"),
    "memory_bytes": ("B", "memory of the fullest GPU"),
}


class LargerModel(Entry):
    """A GPT model that the papers did not train."""

    label: str
    shape: Shape
    source: str


class LargerModels(Entry):
    """`params/larger_models.yaml`: larger models, and how they are trained on how many GPUs.

    Attributes
    ----------
    pipeline_parallel, micro_batch_size
        Choices of a plan, in order of preference: the first stages that fit memory with the first
        micro batch that does.
    micro_batches
        Of one replica and iteration, whatever the number of GPUs.
    """

    cluster: str
    gpus: tuple[PositiveInt, ...]
    pipeline_parallel: tuple[PositiveInt, ...]
    micro_batch_size: tuple[PositiveInt, ...]
    micro_batches: PositiveInt
    models: dict[str, LargerModel]


@dataclass(frozen=True)
class Split:
    """How a model is split, on any number of GPUs: the rest are replicas."""

    stages: int
    micro_batch_size: int
    micro_batches: int

    def workload(self, shape: Shape, gpus: int) -> Workload | None:
        """The plan on so many GPUs; None where they do not divide into whole stages."""
        if gpus % self.stages:
            return None
        replicas = gpus // self.stages
        plan = Plan(
            global_batch_size=self.micro_batch_size * self.micro_batches * replicas,
            micro_batch_size=self.micro_batch_size,
            data_parallel=replicas,
            pipeline_parallel=self.stages,
            recompute="selective",
            distributed_optimizer=True,
        )
        w = workload("gpt", shape, plan)
        try:
            check_stages(w)
        except ReproError:
            return None
        return w


def read_larger_models() -> LargerModels:
    """The larger models and how they are trained."""
    models: LargerModels = read_params("larger_models.yaml", LargerModels)
    return models


def predict_larger(study: LargerModels | None = None) -> xr.Dataset:
    """Predict weak scaling of GPT-2-Large, as the paper trains it, and of larger models.

    Parameters
    ----------
    study : LargerModels, optional
        What to predict; by default what `read_larger_models` returns.

    Returns
    -------
    Dataset
        Dimensions (model, gpus). A model keeps the split that fits the fewest GPUs on which any
        does; it is NaN where it does not fit. Attribute `assumptions` says what is not known.
    """
    study = study or read_larger_models()
    entry = cluster(study.cluster)
    shapes = {_PAPERS: model(_PAPERS).full}
    shapes |= {name: larger.shape for name, larger in study.models.items()}
    labels = [model(_PAPERS).label, *(larger.label for larger in study.models.values())]
    where = (len(shapes), len(study.gpus))
    arrays = {name: np.full(where, np.nan) for name in _VARIABLES}
    preferred = [
        Split(stages, micro_batch_size, study.micro_batches)
        for stages, micro_batch_size in product(study.pipeline_parallel, study.micro_batch_size)
    ]
    for row, (name, shape) in enumerate(shapes.items()):
        splits = [_papers_split()] if name == _PAPERS else preferred
        for column, found in _scaling(shape, splits, study, entry):
            for variable, value in found.items():
                arrays[variable][row, column] = value
        times = arrays["iteration_time_s"][row]
        if known := times[~np.isnan(times)].tolist():
            arrays["weak_scaling_efficiency"][row] = known[0] / times
    return xr.Dataset(
        {
            name: (("model", "gpus"), arrays[name], {"long_name": long_name, "units": units})
            for name, (units, long_name) in _VARIABLES.items()
        },
        coords={"model": list(shapes), "gpus": list(study.gpus), "label": ("model", labels)},
        attrs={"title": f"Weak scaling on {entry.label}", "assumptions": _assumptions(study)},
    )


def _papers_split() -> Split:
    """Figure 7: data parallelism, one micro batch."""
    micro_batch_size = experiment("cluster_b").micro_batch_size
    assert micro_batch_size is not None
    return Split(stages=1, micro_batch_size=micro_batch_size, micro_batches=1)


def _scaling(
    shape: Shape, splits: list[Split], study: LargerModels, entry: Cluster
) -> Iterator[tuple[int, dict[str, float]]]:
    """Index of each number of GPUs that a model can run on, and its quantities there."""
    limit = entry.device.memory_bytes
    calibrated = calibration(entry.calibration)
    drawn = without_columns(draw_parameters(calibrated, entry))
    chosen: Split | None = None
    for column, gpus in enumerate(study.gpus):
        # Once a split fits, the model keeps it: more GPUs only shard the optimizer further.
        for split in [chosen] if chosen else splits:
            w = split.workload(shape, gpus)
            if w is not None and fullest_gpu_bytes(w) <= limit:
                chosen = split
                yield column, _quantities(w, entry, calibrated.parameters, drawn)
                break


def _quantities(
    w: Workload, entry: Cluster, parameters: Parameters, drawn: Parameters
) -> dict[str, float]:
    one = predict_pipeline(w, machine(entry, parameters), parameters)
    time = float(one.time_s)
    times = predict_pipeline(w, machine(entry, drawn), drawn).time_s
    low, high = np.quantile(times, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    waits = one.phases_s[:, [PHASES.index(phase) for phase in _COMMUNICATION]].sum(axis=1)
    return {
        "iteration_time_s": time,
        "iteration_time_low_s": float(low),
        "iteration_time_high_s": float(high),
        "communication_fraction": float(waits.mean()) / time,
        "tokens_per_s_per_gpu": float(w.global_batch_size * w.sequence_length / time / w.gpus),
        "pipeline_parallel": float(w.pipeline_parallel),
        "micro_batch_size": float(w.micro_batch_size),
        "global_batch_size": float(w.global_batch_size),
        "memory_bytes": one.memory_bytes,
    }


def _assumptions(study: LargerModels) -> str:
    return (
        "one NIC of 100 Gbit/s per node, which the paper does not state; more than its four nodes "
        "are assumed on the same fabric; slowdowns of large rings and of stragglers are calibrated "
        "up to 64 nodes of 8 GPUs and extrapolated; "
        "distributed optimizer, selective recomputation, no overlap, gradients of 2 bytes; "
        f"GPT-2-Large with one micro batch of {_papers_split().micro_batch_size} per GPU, others "
        f"with {study.micro_batches} micro batches per replica"
    )
