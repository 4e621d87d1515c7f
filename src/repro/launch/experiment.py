"""Run an experiment on the testbed: every configuration of a selection, resumable."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import xarray as xr

from repro.catalog.clusters import Cluster, cluster
from repro.catalog.experiments import Batch, most_gpus
from repro.catalog.models import model
from repro.catalog.protocols import protocol
from repro.catalog.selection import Selection
from repro.errors import NotRunHere
from repro.launch.cases import Case, run_cases, training_case
from repro.launch.compute import Computing, read_computing
from repro.launch.journal import Journal
from repro.launch.messages import Order, Outcome, OutOfMemory, Site
from repro.launch.progress import progress
from repro.launch.runs import selected_run
from repro.launch.sites import Session, open_site
from repro.launch.this_machine import emulated_gpu
from repro.observe.environment import provenance
from repro.predict.compute import compute_time
from repro.predict.machine import Links, machine
from repro.predict.parameters import calibration
from repro.results.merging import merge
from repro.results.schema import Cell
from repro.testbed.similarity import (
    REFERENCE_MICRO_BATCH,
    Similarity,
    derive,
    memory_allowance_bytes,
)
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


def measure(
    selection: Selection, corpus: Path, split: str, journal: Journal, compute_factor: float = 1.0
) -> xr.Dataset:
    """Measure a selection on the testbed.

    Parameters
    ----------
    selection : Selection
        What to run; its source is `testbed`.
    corpus, split
        The folder of the enwiki artefacts, and its weights of training and validation data.
    journal : Journal
        Finished configurations, so that an interrupted run goes on where it stopped.
    compute_factor : float
        Take the full-scale computing time to be this many times the predicted one.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`. Attribute `not_run` is a JSON object from what
        could not run on this machine to the reason.

    Raises
    ------
    ReproError
        A run failed, the computing times were not measured, or the journal cannot be written.
    """
    entry = cluster(selection.experiment.cluster)
    ranks = most_gpus(selection.experiment.cluster)
    topology = entry.topology.first(ranks)
    site = Site(topology, topology.gpus, cores_per_rank(ranks))
    gpu = emulated_gpu(selection.experiment.cluster)
    configurations: list[_Configuration] = []
    datasets: list[xr.Dataset] = []
    not_run = {}
    try:
        configurations = _plan(selection, entry, corpus, split, compute_factor)
        cases = [configuration.case(gpu) for configuration in configurations]
        datasets = _measure(cases, site, journal, selection)
    except NotRunHere as reason:
        not_run = {"testbed": str(reason)}
    dataset = merge(datasets) if datasets else xr.Dataset()
    similarities = {_name(c, selection): _explain(c.similarity) for c in configurations}
    dataset.attrs = {
        "title": selection.experiment.title,
        "published_in": selection.experiment.source,
        "experiment": selection.name,
        "profile": selection.profile_name,
        "emulated_gpu": json.dumps(gpu),
        "not_run": json.dumps(not_run),
        "similarity": json.dumps(similarities),
        "provenance": provenance(
            {
                "experiment": selection.experiment.model_dump(),
                "cluster": entry.model_dump(),
                "protocols": {name: protocol(name).model_dump() for name in selection.protocols},
                "models": {name: model(name).model_dump() for name in selection.models},
            }
        ),
    }
    return dataset


def _name(configuration: _Configuration, selection: Selection) -> str:
    """A model, with its micro batch where several were compared."""
    similarity = configuration.similarity
    if selection.experiment.sweep is None:
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
) -> list[_Configuration]:
    """Every configuration, fewest changes of rank groups first."""
    planned = []
    chosen = selection.experiment
    computing = {
        name: read_computing(chosen.cluster, name, chosen.pipeline) for name in selection.models
    }
    similarities = _similarities(selection, entry, computing, factor)
    for gpus in selection.gpus:
        for name in selection.models:
            for transport in selection.protocols:
                for value, batch in selection.batches(name, gpus).items():
                    cell = Cell(name, transport, gpus, chosen.sweep, value)
                    similarity = similarities[name, _compared(selection, batch)]
                    planned.append(
                        _configuration(selection, entry, cell, batch, similarity, corpus, split)
                    )
    if chosen.until_out_of_memory:
        planned = [_limit(one, entry, computing[one.cell.model]) for one in planned]
    return planned


def _configuration(
    selection: Selection,
    entry: Cluster,
    cell: Cell,
    batch: Batch,
    similarity: Similarity,
    corpus: Path,
    split: str,
) -> _Configuration:
    fabric = fabric_links(entry, cell.protocol)
    order = Order(
        run=selected_run(selection, cell, batch, corpus, split),
        ranks=cell.gpus,
        rates_gbps=similarity.rates_gbps(entry, fabric.bytes_per_s * 8e-9),
        fabric_latency_s=fabric.latency_s * similarity.time_scale,
    )
    return _Configuration(cell, similarity, order)


def fabric_links(entry: Cluster, transport: str) -> Links:
    """What collectives get between nodes: over a protocol whose rate is this cluster's, or as the
    cluster's own fabric does."""
    network = protocol(transport) if transport in entry.protocols else None
    return machine(entry, calibration(entry.calibration).parameters, network).levels[-1]


def _compared(selection: Selection, batch: Batch) -> int:
    """The micro batch at which computing is compared: the experiment's own, where it has one."""
    chosen = selection.experiment
    if chosen.sweep:
        return batch.micro_batch_size
    return chosen.micro_batch_size or REFERENCE_MICRO_BATCH


def _similarities(
    selection: Selection, entry: Cluster, computing: Mapping[str, Computing], factor: float
) -> dict[tuple[str, int], Similarity]:
    """Every similarity that the selection's configurations need, by model and micro batch."""
    pipeline = selection.experiment.pipeline
    needed = {
        (name, _compared(selection, batch)): model(name)
        for name in selection.models
        for gpus in selection.gpus
        for batch in selection.batches(name, gpus).values()
    }
    return {
        (name, compared): derive(
            name,
            kind,
            entry,
            pipeline=pipeline,
            micro_batch_size=compared,
            compute_testbed_s=computing[name].seconds(compared),
            compute_full_s=compute_time(kind, entry, compared, pipeline=pipeline).value_s * factor,
        )
        for (name, compared), kind in needed.items()
    }


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


def _measure(
    cases: list[Case[TrainingRun]], site: Site, journal: Journal, selection: Selection
) -> list[xr.Dataset]:
    """Every case's dataset, from the journal or from a run; ranks start when needed."""
    with ExitStack() as stack, progress(cases, selection.name, "it") as bar:
        sessions: list[Session] = []

        def run(case: Case[TrainingRun], report: Callable[[int], None]) -> Outcome | OutOfMemory:
            if not sessions:
                sessions.append(stack.enter_context(open_site(site)))
            return sessions[0].run(case.order, report)

        return run_cases(cases, journal, run, bar.report)[0]
