"""Weak scaling beyond the papers: more nodes of cluster B, and larger models, predicted."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.papers import Shape, model
from repro.catalog.phases import PHASES
from repro.catalog.studies.experiments import experiment
from repro.catalog.studies.larger_models import LargerModels, read_larger_models
from repro.catalog.systems.clusters import Cluster, cluster
from repro.predict.calibration.interval import LEVEL, draw_parameters, without_columns
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
_ASSUMPTIONS = (
    "one NIC of 100 Gbit/s per node, which the paper does not state; more than its four nodes "
    "are assumed on the same fabric; slowdowns of large rings and of stragglers are calibrated "
    "up to 64 nodes of 8 GPUs and extrapolated; "
    "distributed optimizer, selective recomputation, no overlap, gradients of 2 bytes; "
    "GPT-2-Large with one micro batch of {micro_batch} per GPU, others "
    "with {micro_batches} micro batches per replica"
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


def predict_larger(study: LargerModels | None = None) -> xr.Dataset:
    """Predict weak scaling of GPT-2-Large, as the paper trains it, and of larger models.

    `study` are models and plans, by default the result of `read_larger_models`.

    Returns
    -------
    Dataset
        Dimensions (model, gpus). A model keeps the first plan that fits on the fewest GPUs; NaN
        if none fits. The attribute `assumptions` lists what the paper does not state.
    """
    study = study or read_larger_models()
    entry, papers = cluster(study.cluster), model(_PAPERS)
    micro_batch = experiment("cluster_b").micro_batch_size
    assert micro_batch is not None
    # Figure 7's training: data parallelism, one micro batch.
    changed = {"pipeline_parallel": (1,), "micro_batch_size": (micro_batch,), "micro_batches": 1}
    rows = _scaling(_PAPERS, papers.full, study.model_copy(update=changed), entry)
    for name, larger in study.models.items():
        rows |= _scaling(name, larger.shape, study, entry)
    labels = {_PAPERS: papers.label} | {name: one.label for name, one in study.models.items()}
    every = pd.MultiIndex.from_product([labels, study.gpus], names=["model", "gpus"])
    found = pd.DataFrame(rows, index=[*_VARIABLES]).T.reindex(every).to_xarray()
    found = found.reindex(model=list(labels)).assign_coords(label=("model", list(labels.values())))
    for name, (units, long_name) in _VARIABLES.items():
        found[name].attrs = {"long_name": long_name, "units": units}
    return found.assign_attrs(
        title=f"Weak scaling on {entry.label}",
        assumptions=_ASSUMPTIONS.format(micro_batch=micro_batch, micro_batches=study.micro_batches),
    )


def _scaling(
    name: str, shape: Shape, study: LargerModels, entry: Cluster
) -> dict[tuple[str, int], dict[str, float]]:
    """Return the quantities of a model by its name and each number of GPUs that it can run on."""
    calibrated = calibration(entry.calibration)
    drawn = without_columns(draw_parameters(calibrated, entry))
    choices = list(product(study.pipeline_parallel, study.micro_batch_size))
    found: dict[tuple[str, int], dict[str, float]] = {}
    for gpus in study.gpus:
        plans = _workloads(shape, gpus, choices, study.micro_batches)
        w = next((w for w in plans if fullest_gpu_bytes(w) <= entry.device.memory_bytes), None)
        if w is None:
            continue
        # Once a plan fits, the model keeps it: more GPUs only shard the optimizer further.
        choices = [(int(w.pipeline_parallel), int(w.micro_batch_size))]
        found[name, gpus] = one = _quantities(w, entry, calibrated.parameters, drawn)
        fewest_s = next(iter(found.values()))["iteration_time_s"]
        one["weak_scaling_efficiency"] = fewest_s / one["iteration_time_s"]
    return found


def _workloads(
    shape: Shape, gpus: int, choices: list[tuple[int, int]], micro_batches: int
) -> Iterator[Workload]:
    """Yield plans by stages and micro batch that divide the GPUs and layers, in this order."""
    for stages, micro_batch in choices:
        if gpus % stages or shape.layers % stages:
            continue
        replicas = gpus // stages
        plan = Plan(
            global_batch_size=micro_batch * micro_batches * replicas,
            micro_batch_size=micro_batch,
            data_parallel=replicas,
            pipeline_parallel=stages,
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
