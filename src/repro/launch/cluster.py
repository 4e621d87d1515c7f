"""Run an experiment on real nodes, at full size."""

import json
from dataclasses import asdict
from pathlib import Path

import xarray as xr

from repro.catalog.models import model
from repro.catalog.nodes import Nodes, read_nodes
from repro.catalog.protocols import transport
from repro.catalog.selection import Selection
from repro.errors import NotRunHere
from repro.launch.cases import Case, training_case
from repro.launch.journal import Journal
from repro.launch.messages import Order
from repro.launch.on_nodes import run_on_nodes
from repro.launch.runs import on_nodes, selected_run
from repro.observe.environment import provenance
from repro.results.schema import Cell
from repro.train.records import TrainingRun


def measure_on_cluster(
    selection: Selection, corpus: Path, split: str, journal: Journal, folder: Path
) -> xr.Dataset:
    """Measure a selection on this machine's GPUs or a partition's nodes.

    Parameters
    ----------
    selection : Selection
        What to run; its source is `cluster`.
    corpus, split
        The folder of the enwiki artefacts, and its weights of training and validation data.
    journal : Journal
        Finished configurations, so that an interrupted run goes on where it stopped.
    folder
        For what ranks and jobs write.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`. Attribute `not_run` is a JSON object from what
        could not run to the reason, `ran_on` a JSON list of what each configuration ran on.

    Raises
    ------
    ReproError
        A run or a job failed, or traffic took another way than the protocol's.
    """
    nodes = read_nodes()
    try:
        dataset, not_run = run_on_nodes(
            _cases(selection, nodes, corpus, split), journal, folder, selection.name, "it"
        )
    except NotRunHere as reason:
        dataset, not_run = xr.Dataset(), {"cluster": str(reason)}
    return dataset.assign_attrs(
        title=f"{selection.experiment.title}, on real nodes",
        published_in=selection.experiment.source,
        experiment=selection.name,
        profile=selection.profile_name,
        not_run=json.dumps(not_run),
        provenance=provenance(
            {
                "experiment": selection.experiment.model_dump(),
                "nodes": nodes.model_dump(),
                "protocols": {name: transport(name).model_dump() for name in selection.protocols},
                "models": {name: model(name).model_dump() for name in selection.models},
            }
        ),
    )


def _cases(selection: Selection, nodes: Nodes, corpus: Path, split: str) -> list[Case[TrainingRun]]:
    chosen = selection.experiment
    cases = []
    for gpus in selection.gpus:
        for name in selection.models:
            for protocol in selection.protocols:
                for value, batch in selection.batches(name, gpus).items():
                    cell = Cell(name, protocol, gpus, chosen.sweep, value)
                    small = selected_run(selection, cell, batch, corpus, split)
                    run = on_nodes(small, name, chosen.pipeline, nodes)
                    order = Order(run, gpus, rates_gbps={})
                    inputs = {
                        "source": "cluster",
                        "cell": asdict(cell),
                        "order": asdict(order),
                        "nodes": nodes.model_dump(),
                    }
                    cases.append(training_case("cluster", cell, order, inputs))
    return cases
