"""An experiment on the testbed, resolved: rates, latencies and memory by the similarity rule."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from repro.catalog.models.papers import model
from repro.catalog.models.trainable import trainable
from repro.catalog.studies.experiments import most_gpus
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.clusters import Cluster, cluster
from repro.catalog.systems.protocols import protocol
from repro.errors import NotRunHere
from repro.experiments.computing import Computing, read_computing
from repro.experiments.resolved import Resolved
from repro.experiments.runs import selected_run
from repro.experiments.similarity import (
    FASTEST_LINK_GBPS,
    Similarity,
    derive,
    memory_allowance_bytes,
)
from repro.experiments.this_machine import emulated_gpu
from repro.launch.cases import Case, training_case
from repro.launch.messages import Order, Site
from repro.predict.explore.experiments.configurations import compute_time
from repro.predict.network.machine import Links, machine
from repro.predict.parameters import calibration
from repro.results.schema import Cell
from repro.testbed.speed import cores_per_rank
from repro.train.records import TrainingRun


@dataclass(frozen=True)
class _Configuration:
    """One cell of the experiment, fully resolved."""

    cell: Cell
    similarity: Similarity
    order: Order[TrainingRun]

    def case(self, gpu: Mapping[str, object]) -> Case[TrainingRun]:
        """What a site is to be asked for, whose emulated GPUs are such."""
        inputs = {
            "cell": asdict(self.cell),
            "similarity": asdict(self.similarity),
            "order": asdict(self.order),
            "emulated_gpu": gpu,
        }
        scales = self.similarity.time_scale, self.similarity.rate_scale
        return training_case("testbed", self.cell, self.order, inputs, *scales)


def resolve_on_testbed(
    selection: Selection, corpus: Path, split: str, compute_factor: float = 1.0
) -> Resolved:
    """What a selection asks of emulated nodes.

    Parameters
    ----------
    selection : Selection
        What to run; its source is `testbed`.
    corpus, split
        The folder of the enwiki artefacts, and its weights of training and validation data.
    compute_factor : float
        Take forward and backward compute at full scale to be this many times the predicted one.

    Raises
    ------
    ReproError
        The computing times were not measured, or not on this machine.
    """
    entry = cluster(selection.experiment.cluster)
    ranks = most_gpus(selection.experiment.cluster)
    topology = entry.topology.truncated_to(ranks)
    configurations: list[_Configuration] = []
    missing, slowed = {}, 1.0
    try:
        configurations, slowed = _plan(selection, entry, corpus, split, compute_factor)
    except NotRunHere as reason:
        missing = {"testbed": str(reason)}
    similarities = {_name(c, selection): _explain(c.similarity) for c in configurations}
    cores = cores_per_rank(ranks)
    gpu = {**emulated_gpu(cores), "slowed": slowed}
    return Resolved(
        title=selection.name,
        where=Site(topology, topology.gpus, cores / slowed),
        cases=tuple(configuration.case(gpu) for configuration in configurations),
        attributes={
            "title": selection.experiment.title,
            "published_in": selection.experiment.source,
            "experiment": selection.name,
            "profile": selection.profile_name,
            "emulated_gpu": json.dumps(gpu),
            "similarity": json.dumps(similarities),
        },
        parameters={
            "experiment": selection.experiment.model_dump(),
            "cluster": entry.model_dump(),
            "protocols": {name: protocol(name).model_dump() for name in selection.protocols},
            "models": {name: trainable(name).model_dump() for name in selection.models},
        },
        missing=missing,
    )


def _name(configuration: _Configuration, selection: Selection) -> str:
    """A model, with its micro batch where several were compared."""
    similarity = configuration.similarity
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


def _plan(
    selection: Selection, entry: Cluster, corpus: Path, split: str, factor: float
) -> tuple[list[_Configuration], float]:
    """Every configuration, fewest changes of rank groups first, and how many times slower than they
    could emulated GPUs compute."""
    planned = []
    chosen = selection.experiment
    computing = {
        name: read_computing(chosen.cluster, name, chosen.pipeline) for name in selection.models
    }
    similarities = _similarities(selection, entry, computing, factor)
    fastest_gbps = max(
        one.rate_scale * fabric_links(entry, transport).bytes_per_s * 8e-9
        for one in similarities.values()
        for transport in entry.protocols or selection.protocols
    )
    # The more and the faster cores a machine has, the faster links would have to be.
    slowed = max(1.0, fastest_gbps / FASTEST_LINK_GBPS)
    similarities = {key: one.slowed(slowed) for key, one in similarities.items()}
    for gpus in selection.gpus:
        for name in selection.models:
            for value, batch in selection.batches(name, gpus).items():
                similarity = similarities[name, batch.micro_batch_size]
                alone_s = computing[name].passes_s(batch.micro_batch_size)
                passes_s = tuple(slowed * one for one in alone_s)
                # Side by side, so that they take turns.
                for transport in selection.protocols:
                    cell = Cell(name, transport, gpus, chosen.sweep, value)
                    fabric = fabric_links(entry, transport)
                    order = Order(
                        run=selected_run(selection, cell, batch, corpus, split),
                        ranks=gpus,
                        rates_gbps=similarity.rates_gbps(entry, fabric.bytes_per_s * 8e-9),
                        fabric_latency_s=fabric.latency_s * similarity.time_scale,
                        passes_s=passes_s,
                    )
                    planned.append(_Configuration(cell, similarity, order))
    if chosen.until_out_of_memory:
        planned = [_limit(one, entry, computing[one.cell.model]) for one in planned]
    return planned, slowed


def fabric_links(entry: Cluster, transport: str) -> Links:
    """What collectives get between nodes: over a protocol whose rate is this cluster's, or as the
    cluster's own fabric does."""
    network = protocol(transport) if transport in entry.protocols else None
    return machine(entry, calibration(entry.calibration).parameters, network).levels[-1]


def _similarities(
    selection: Selection, entry: Cluster, computing: Mapping[str, Computing], factor: float
) -> dict[tuple[str, int], Similarity]:
    """Every similarity that the selection's configurations need, by model and micro batch."""
    pipeline = selection.experiment.pipeline
    found = {}
    for name in selection.models:
        kind = trainable(name)
        for micro_batch in selection.micro_batch_sizes(name):
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
    return found


def _limit(configuration: _Configuration, entry: Cluster, computing: Computing) -> _Configuration:
    """Give every rank the memory of an emulated GPU."""
    order = configuration.order
    allowance = memory_allowance_bytes(
        model(configuration.cell.model),
        entry,
        pipeline=configuration.similarity.pipeline,
        stages=order.run.pipeline_parallel,
        fixed_bytes=computing.fixed_bytes,
        sequence_bytes=computing.sequence_bytes,
    )
    limited = replace(order, memory_bytes=(allowance,) * order.ranks)
    return replace(configuration, order=limited)
