"""The study of GPT training's communication at full scale: volumes and throughput, predicted."""

from dataclasses import replace

import numpy as np
import pandas as pd

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES
from repro.catalog.parallel.communication_volumes import step_communication
from repro.catalog.parallel.layouts import Layout, read_plan
from repro.catalog.studies.communication import CommunicationStudy, read_communication_study
from repro.catalog.studies.larger_models import gpt_shape
from repro.catalog.systems.clusters import cluster
from repro.errors import ReproError
from repro.predict.explore.jobs.traffic import sent_bytes
from repro.predict.network.machine import machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.quantities import quantities
from repro.predict.workload import Array, Plan, workload


def study_layout(gpus: int, study: CommunicationStudy | None = None) -> Layout:
    """The study's plan on so many GPUs, the rest replicas.

    Raises
    ------
    ReproError
        The GPUs are no multiple of a replica's.
    """
    chosen = (study or read_communication_study()).study
    plan = read_plan(chosen.plan)
    if gpus % plan.replica_ranks:
        raise ReproError(f"gpus {gpus}: no multiple of the {plan.replica_ranks} of {chosen.plan}")
    return replace(plan, data_parallel=gpus // plan.replica_ranks)


def volumes(shape: Shape, layout: Layout, element_bytes: int = FULL_ELEMENT_BYTES) -> pd.DataFrame:
    """What a rank calls in an iteration, the mean over all stages.

    Returns
    -------
    DataFrame
        A row for each `role`, `operation`, `ranks` and `bytes` of a call: `calls`, and
        `sent_bytes` of all of them by the bus factor.
    """
    p = layout.pipeline_parallel
    rows = [
        (one.role, one.operation, one.ranks, one.size_bytes, one.calls / p, sent_bytes(one) / p)
        for stage in range(p)
        for one in step_communication(shape, layout, stage, element_bytes, element_bytes)
    ]
    columns = ["role", "operation", "ranks", "bytes", "calls", "sent_bytes"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(columns[:4], sort=False, as_index=False).sum()


def study_volumes() -> dict[str, pd.DataFrame]:
    """`volumes` of all models of the study on its fewest GPUs, by model."""
    study = read_communication_study()
    layout = study_layout(min(study.study.gpus), study)
    return {name: volumes(gpt_shape(name), layout) for name in study.study.models}


def throughput(shape: Shape, layout: Layout, parameters: Parameters | None = None) -> Array:
    """Tokens per second and GPU on the study's cluster; a value for each draw of parameters."""
    entry = cluster(read_communication_study().study.cluster)
    known = parameters or calibration(entry.calibration).parameters
    plan = Plan(
        global_batch_size=layout.micro_batch_size * layout.micro_batches * layout.data_parallel,
        micro_batch_size=layout.micro_batch_size,
        data_parallel=layout.data_parallel,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        recompute="selective",
        sequence_parallel=layout.sequence_parallel,
        distributed_optimizer=layout.zero > 0,
    )
    flat, _ = workload("gpt", shape, plan).flat()
    found = quantities(flat, machine(entry, known), known)
    return np.asarray(np.ravel(found["tokens_per_s_per_gpu"]))


def predict_study() -> pd.DataFrame:
    """All models on all numbers of GPUs, and with all sequence lengths on the fewest.

    Returns
    -------
    DataFrame
        `model`, `hidden_size`, `gpus`, `sequence_length`, `tokens_per_s_per_gpu`; `sent_bytes` of
        a GPU and iteration, and of each role as `ROLE_bytes`; `bytes_per_token` of its replica's
        tokens.
    """
    study = read_communication_study()
    rows = []
    for name in study.study.models:
        own = gpt_shape(name)
        fewest = min(study.study.gpus)
        cases = [(gpus, own.sequence_length) for gpus in study.study.gpus]
        cases += [(fewest, length) for length in study.study.sequence_lengths]
        for gpus, length in dict.fromkeys(cases):
            shape = own.model_copy(update={"sequence_length": length})
            layout = study_layout(gpus, study)
            moved = volumes(shape, layout)
            by_role = moved.groupby("role").sent_bytes.sum()
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
