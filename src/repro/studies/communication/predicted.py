"""Study of GPT training's communication at full scale: volumes and throughput."""

from dataclasses import replace

import numpy as np
import pandas as pd

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES
from repro.catalog.parallel.communication_volumes import step_communication
from repro.catalog.parallel.layouts import Layout, read_plan
from repro.catalog.studies.communication import read_communication_study
from repro.catalog.studies.larger_models import gpt_shape
from repro.catalog.systems.clusters import cluster
from repro.errors import ReproError
from repro.predict.explore.jobs.traffic import sent_bytes
from repro.predict.network.machine import machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.quantities import quantities
from repro.predict.workload import Array, layout_plan, workload


def study_layout(gpus: int | None = None) -> Layout:
    """Return the study's plan with replicas on all GPUs, by default the study's fewest.

    Raises
    ------
    ReproError
        The GPUs are not a multiple of a replica's.
    """
    study = read_communication_study().study
    plan, count = read_plan(study.plan), gpus or min(study.gpus)
    if count % plan.replica_ranks:
        raise ReproError(f"gpus {count}: no multiple of the {plan.replica_ranks} of {study.plan}")
    return replace(plan, data_parallel=count // plan.replica_ranks)


def volumes(shape: Shape, layout: Layout) -> pd.DataFrame:
    """Count the calls of a rank in an iteration, averaged over all stages.

    Returns
    -------
    DataFrame
        A row per `role`, `operation`, `ranks` and `bytes` of a call: `calls`, and `sent_bytes` of
        all of them by the bus factor.
    """
    p, widths = layout.pipeline_parallel, (FULL_ELEMENT_BYTES, FULL_ELEMENT_BYTES)
    rows = [
        (one.role, one.operation, one.ranks, one.size_bytes, one.calls / p, sent_bytes(one) / p)
        for stage in range(p)
        for one in step_communication(shape, layout, stage, *widths)
    ]
    columns = ["role", "operation", "ranks", "bytes", "calls", "sent_bytes"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(columns[:4], sort=False, as_index=False).sum()


def study_volumes() -> dict[str, pd.DataFrame]:
    """Return `volumes` of all models of the study on its fewest GPUs, by model."""
    models = read_communication_study().study.models
    return {name: volumes(gpt_shape(name), study_layout()) for name in models}


def throughput(shape: Shape, layout: Layout, parameters: Parameters | None = None) -> Array:
    """Predict tokens per second and GPU on the study's cluster, for each draw of parameters."""
    entry = cluster(read_communication_study().study.cluster)
    known = parameters or calibration(entry.calibration).parameters
    flat, _ = workload("gpt", shape, layout_plan(layout, "selective")).flat()
    found = quantities(flat, machine(entry, known), known)
    return np.asarray(np.ravel(found["tokens_per_s_per_gpu"]))


def predict_study() -> pd.DataFrame:
    """Predict all models on all numbers of GPUs, and all sequence lengths on the fewest.

    Returns
    -------
    DataFrame
        `model`, `hidden_size`, `gpus`, `sequence_length`, `tokens_per_s_per_gpu`; `sent_bytes` per
        GPU and iteration, and those of each role as `ROLE_bytes`; `bytes_per_token` of its
        replica's tokens.
    """
    study, rows = read_communication_study().study, []
    for name in study.models:
        own = gpt_shape(name)
        cases = [(gpus, own.sequence_length) for gpus in study.gpus]
        cases += [(min(study.gpus), length) for length in study.sequence_lengths]
        for gpus, length in dict.fromkeys(cases):
            shape = own.model_copy(update={"sequence_length": length})
            layout = study_layout(gpus)
            by_role = volumes(shape, layout).groupby("role").sent_bytes.sum()
            tokens = layout.micro_batch_size * layout.micro_batches * length
            rows.append(
                {
                    "model": name,
                    "hidden_size": shape.hidden_size,
                    "gpus": gpus,
                    "sequence_length": length,
                    "tokens_per_s_per_gpu": float(throughput(shape, layout)[0]),
                    "sent_bytes": by_role.sum(),
                    "bytes_per_token": by_role.sum() / tokens,
                    **{f"{role}_bytes": size for role, size in by_role.items()},
                }
            )
    return pd.DataFrame(rows).fillna(0.0)
