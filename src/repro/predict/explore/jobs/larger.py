"""Weak scaling beyond the papers: more nodes of cluster B, and larger models, predicted."""

from collections.abc import Iterator, Sequence

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
from repro.predict.explore.jobs.search import enumerate_plans
from repro.predict.network.machine import machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.pipeline_iteration import fullest_gpu_bytes, predict_pipeline
from repro.predict.workload import Plan, Workload, workload

# Model that the paper trained on cluster B, the first one here.
_PAPERS = "gpt2-large"
# Phases in which a rank waits for others or sends, with the pipeline's fill and drain.
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
    """Larger models, numbers of GPUs and choices of a plan (`params/larger_models.yaml`).

    Attributes
    ----------
    pipeline_parallel, micro_batch_size
        Choices of a plan, in order of preference. A model gets the first number of stages that
        fits in memory, with the first micro batch that does.
    micro_batches
        Micro batches per replica and iteration, on any number of GPUs.
    """

    cluster: str
    gpus: tuple[PositiveInt, ...]
    pipeline_parallel: tuple[PositiveInt, ...]
    micro_batch_size: tuple[PositiveInt, ...]
    micro_batches: PositiveInt
    models: dict[str, LargerModel]


def read_larger_models() -> LargerModels:
    """Read the larger models and how they are trained."""
    models: LargerModels = read_params("larger_models.yaml", LargerModels)
    return models


def predict_larger(study: LargerModels | None = None) -> xr.Dataset:
    """Predict weak scaling of GPT-2-Large, as the paper trains it, and of larger models.

    Parameters
    ----------
    study : LargerModels, optional
        Models and plans. Default: the result of `read_larger_models`.

    Returns
    -------
    Dataset
        Dimensions (model, gpus). A model keeps the first plan that fits on the fewest GPUs; NaN
        if none fits. The attribute `assumptions` lists what the paper does not state.
    """
    study = study or read_larger_models()
    entry = cluster(study.cluster)
    shapes = {_PAPERS: model(_PAPERS).full}
    shapes |= {name: larger.shape for name, larger in study.models.items()}
    labels = [model(_PAPERS).label, *(larger.label for larger in study.models.values())]
    where = (len(shapes), len(study.gpus))
    arrays = {name: np.full(where, np.nan) for name in _VARIABLES}
    for row, (name, shape) in enumerate(shapes.items()):
        trained = _papers_training(study) if name == _PAPERS else study
        for column, found in _scaling(shape, trained, entry):
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


def _papers_training(study: LargerModels) -> LargerModels:
    """Return figure 7's training: data parallelism, one micro batch."""
    size = experiment("cluster_b").micro_batch_size
    changed = {"pipeline_parallel": (1,), "micro_batch_size": (size,), "micro_batches": 1}
    return study.model_copy(update=changed)


def _scaling(
    shape: Shape, study: LargerModels, entry: Cluster
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the index of each number of GPUs that a model can run on, and its quantities there."""
    calibrated = calibration(entry.calibration)
    drawn = without_columns(draw_parameters(calibrated, entry))
    stages, sizes = study.pipeline_parallel, study.micro_batch_size
    for column, gpus in enumerate(study.gpus):
        for w in _workloads(shape, gpus, stages, sizes, study.micro_batches):
            if fullest_gpu_bytes(w) <= entry.device.memory_bytes:
                # Once a plan fits, the model keeps it: more GPUs only shard the optimizer further.
                stages, sizes = (int(w.pipeline_parallel),), (int(w.micro_batch_size),)
                yield column, _quantities(w, entry, calibrated.parameters, drawn)
                break


def _workloads(
    shape: Shape, gpus: int, stages: Sequence[int], sizes: Sequence[int], micro_batches: int
) -> Iterator[Workload]:
    """Yield plans that divide the GPUs into whole stages, in order of preference."""
    widths, layers = (shape.attention_heads,), (shape.layers,)
    try:
        plans = enumerate_plans(
            gpus, "GPT", widths=widths, layers=layers, tp=(1,), pp=stages, micro_batch=sizes
        )
    except ReproError:
        return
    for dp, pp, micro_batch in zip(plans.dp, plans.pp, plans.micro_batch, strict=True):
        plan = Plan(
            global_batch_size=micro_batch * micro_batches * dp,
            micro_batch_size=micro_batch,
            data_parallel=dp,
            pipeline_parallel=pp,
            recompute="selective",
            distributed_optimizer=True,
        )
        yield workload("gpt", shape, plan)


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
    size = _papers_training(study).micro_batch_size[0]
    return (
        "one NIC of 100 Gbit/s per node, which the paper does not state; more than its four nodes "
        "are assumed on the same fabric; slowdowns of large rings and of stragglers are calibrated "
        "up to 64 nodes of 8 GPUs and extrapolated; "
        "distributed optimizer, selective recomputation, no overlap, gradients of 2 bytes; "
        f"GPT-2-Large with one micro batch of {size} per GPU, others "
        f"with {study.micro_batches} micro batches per replica"
    )
