"""An experiment on real nodes, at full size, resolved."""

from dataclasses import asdict
from pathlib import Path

from repro.catalog.models.trainable import trainable
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.nodes import Nodes, read_nodes
from repro.catalog.systems.protocols import transport
from repro.experiments.resolved import Resolved
from repro.experiments.runs import on_nodes, selected_run
from repro.launch.cases import Case, training_case
from repro.launch.messages import Order
from repro.results.schema import Cell
from repro.train.records import TrainingRun


def resolve_on_nodes(selection: Selection, corpus: Path, split: str) -> Resolved:
    """What a selection asks of this machine's GPUs, or of a partition's nodes.

    Parameters
    ----------
    selection : Selection
        What to run; its source is `cluster`.
    corpus, split
        The folder of the enwiki artefacts, and its weights of training and validation data.
    """
    nodes = read_nodes()
    return Resolved(
        title=selection.name,
        where=nodes,
        cases=tuple(_cases(selection, nodes, corpus, split)),
        attributes={
            "title": f"{selection.experiment.title}, on real nodes",
            "published_in": selection.experiment.source,
            "experiment": selection.name,
            "profile": selection.profile_name,
        },
        parameters={
            "experiment": selection.experiment.model_dump(),
            "nodes": nodes.model_dump(),
            "protocols": {name: transport(name).model_dump() for name in selection.protocols},
            "models": {name: trainable(name).model_dump() for name in selection.models},
        },
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
