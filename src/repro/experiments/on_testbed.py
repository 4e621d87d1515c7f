"""Measurement of an experiment on the testbed: rates, latencies and memory by similarity."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from repro.catalog.models.papers import model
from repro.catalog.models.trainable import trainable
from repro.catalog.studies.experiments import most_gpus
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.clusters import Cluster, cluster
from repro.catalog.systems.protocols import protocol
from repro.errors import NotRunHere
from repro.experiments.computing import Computing, read_computing
from repro.experiments.measurement import Measurement
from repro.experiments.runs import selected_run
from repro.experiments.similarity import (
    FASTEST_LINK_GBPS,
    Similarity,
    derive,
    memory_limit_bytes,
)
from repro.experiments.this_machine import emulated_gpu
from repro.launch.request import PoolSpec, Request
from repro.predict.explore.experiments.configurations import compute_time, stage_times_s
from repro.predict.network.machine import Links, machine
from repro.predict.parameters import calibration
from repro.results.schema import coordinates
from repro.testbed.speed import cores_per_rank
from repro.train.records import TrainingRun


def emulated_measurement(
    selection: Selection, corpus: Path, split: str, compute_factor: float = 1.0
) -> Measurement:
    """Return the measurement of a selection on emulated nodes.

    Parameters
    ----------
    selection : Selection
        Configurations to run; its source is `testbed`.
    corpus, split
        Folder of the enwiki artefacts, and weights of training and validation data.
    compute_factor : float
        Factor on the predicted forward and backward compute at full scale.

    Raises
    ------
    ReproError
        The computing times were not measured, or not on this machine.
    """
    chosen = selection.experiment
    entry, ranks = cluster(chosen.cluster), most_gpus(chosen.cluster)
    topology, cores = entry.topology.truncated_to(ranks), cores_per_rank(ranks)
    similarities: dict[tuple[str, int], Similarity] = {}
    computing: dict[str, Computing] = {}
    missing, slowdown = {}, 1.0
    try:
        computing = {
            name: read_computing(chosen.cluster, name, chosen.pipeline) for name in selection.models
        }
        similarities, slowdown = _similarities(selection, entry, computing, compute_factor)
    except NotRunHere as reason:
        missing = {"testbed": str(reason)}
    gpu = {**emulated_gpu(cores), "slowed": slowdown}
    requests = (
        [] if missing else _requests(selection, entry, computing, similarities, gpu, corpus, split)
    )
    return Measurement(
        name=selection.name,
        target=PoolSpec(topology, topology.gpus, cores / slowdown),
        requests=tuple(requests),
        attributes={
            "title": chosen.title,
            "published_in": chosen.source,
            "experiment": selection.name,
            "profile": selection.profile_name,
            "emulated_gpu": json.dumps(gpu),
            "similarity": json.dumps(
                {_name(one, selection): _explain(one) for one in similarities.values()}
            ),
        },
        parameters={
            "experiment": chosen.model_dump(),
            "cluster": entry.model_dump(),
            "protocols": {name: protocol(name).model_dump() for name in selection.protocols},
            "models": {name: trainable(name).model_dump() for name in selection.models},
        },
        missing=missing,
    )


def _name(similarity: Similarity, selection: Selection) -> str:
    """Return a model's name, with its micro batch where several are compared."""
    if selection.experiment.micro_batch_size:
        return similarity.model
    return f"{similarity.model}, micro batch {similarity.micro_batch_size}"


def _explain(similarity: Similarity) -> dict[str, object]:
    return {
        **asdict(similarity),
        "time_scale": similarity.time_scale,
        "rate_scale": similarity.rate_scale,
        "rule": "B_testbed = B_cluster (V_testbed/V_full) (C_full/C_testbed)",
    }


def _requests(
    selection: Selection,
    entry: Cluster,
    computing: Mapping[str, Computing],
    similarities: Mapping[tuple[str, int], Similarity],
    gpu: Mapping[str, Any],
    corpus: Path,
    split: str,
) -> list[Request[TrainingRun]]:
    """Return all configurations in an order with few changes of process groups."""
    chosen = selection.experiment
    requests = []
    for gpus in selection.gpus:
        for name in selection.models:
            for value, batch in selection.batches(name, gpus).items():
                run = selected_run(selection, name, gpus, batch, corpus, split)
                similarity = similarities[name, batch.micro_batch_size]
                passes_s = _passes_s(entry, name, run, computing[name])
                # Neighbours, so that protocols run interleaved.
                for transport in selection.protocols:
                    fabric = fabric_links(entry, transport)
                    request = Request(
                        coordinates(name, transport, gpus, chosen.sweep, value),
                        run,
                        gpus,
                        rates_gbps=similarity.rates_gbps(entry, fabric.bytes_per_s * 8e-9),
                        fabric_latency_s=fabric.latency_s * similarity.time_scale,
                        memory_bytes=_memory_bytes(selection, entry, computing[name], name, gpus),
                        passes_s=tuple(
                            tuple(gpu["slowed"] * pass_s for pass_s in stage) for stage in passes_s
                        ),
                        time_scale=similarity.time_scale,
                        rate_scale=similarity.rate_scale,
                        conditions={"emulated_gpu": gpu},
                    )
                    requests.append(request)
    return requests


def _passes_s(
    entry: Cluster, name: str, run: TrainingRun, computing: Computing
) -> Sequence[Sequence[float]]:
    """Return the times of an emulated GPU's passes by stage, without an optimizer that is split.

    A CPU computes logits and embeddings at other speeds than layers. So the stages of a pipeline
    divide the time of the whole model as they are predicted to do at full scale.
    """
    alone_s = computing.passes_s(run.micro_batch_size)
    if run.pipeline_parallel == 1:
        split = run.expert_parallel > 1 or run.distributed_optimizer
        return (alone_s[: -1 if split else None],)
    full_s = stage_times_s(model(name), entry, run.micro_batch_size, run.pipeline_parallel)
    stages_s: list[list[float]] = (full_s * sum(alone_s[:-1]) / full_s.sum()).tolist()
    return stages_s


def fabric_links(entry: Cluster, transport: str) -> Links:
    """Return the links between nodes: a protocol's on its cluster, or the cluster's fabric."""
    network = protocol(transport) if transport in entry.protocols else None
    return machine(entry, calibration(entry.calibration).parameters, network).levels[-1]


def _similarities(
    selection: Selection, entry: Cluster, computing: Mapping[str, Computing], factor: float
) -> tuple[dict[tuple[str, int], Similarity], float]:
    """Return similarities by model and micro batch, and by how much emulated GPUs are slowed.

    They are slowed where links would have to be faster than can be emulated.
    """
    pipeline = selection.experiment.pipeline
    found = {}
    for name in selection.models:
        kind = trainable(name)
        for micro_batch in sorted(selection.micro_batch_sizes(name)):
            full = compute_time(kind, entry, micro_batch, pipeline=pipeline)
            found[name, micro_batch] = derive(
                name,
                kind,
                entry,
                pipeline=pipeline,
                micro_batch_size=micro_batch,
                compute_testbed_s=computing[name].seconds(micro_batch, step=not pipeline),
                compute_full_s=factor * full.value_s + (0.0 if pipeline else full.optimizer_s),
            )
    fastest_gbps = max(
        similarity.rate_scale * fabric_links(entry, transport).bytes_per_s * 8e-9
        for similarity in found.values()
        for transport in entry.protocols or selection.protocols
    )
    slowdown = max(1.0, fastest_gbps / FASTEST_LINK_GBPS)
    return {key: similarity.slowed(slowdown) for key, similarity in found.items()}, slowdown


def _memory_bytes(
    selection: Selection, entry: Cluster, computing: Computing, name: str, gpus: int
) -> tuple[int, ...]:
    """Return the memory limit of each emulated GPU; empty without one."""
    chosen = selection.experiment
    if not chosen.until_out_of_memory:
        return ()
    limit = memory_limit_bytes(
        model(name),
        entry,
        pipeline=chosen.pipeline,
        stages=chosen.stages(gpus),
        fixed_bytes=computing.fixed_bytes,
        sequence_bytes=computing.sequence_bytes,
    )
    return (limit,) * gpus
