"""Measurement of an experiment on real nodes, at full size."""

from pathlib import Path

from repro.catalog.models.trainable import trainable
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.nodes import Nodes, read_nodes
from repro.catalog.systems.protocols import transport
from repro.experiments.measurement import Measurement
from repro.experiments.runs import on_nodes, selected_run
from repro.launch.request import Request
from repro.results.schema import coordinates
from repro.train.records import TrainingRun


def node_measurement(selection: Selection, corpus: Path, split: str) -> Measurement:
    """Return the measurement of a selection on this machine's GPUs, or on a partition's nodes.

    Parameters
    ----------
    selection : Selection
        Configurations to run; its source is `cluster`.
    corpus, split
        Folder of the enwiki artefacts, and weights of training and validation data.
    """
    nodes = read_nodes()
    return Measurement(
        name=selection.name,
        target=nodes,
        requests=tuple(_requests(selection, nodes, corpus, split)),
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


def _requests(
    selection: Selection, nodes: Nodes, corpus: Path, split: str
) -> list[Request[TrainingRun]]:
    chosen = selection.experiment
    requests = []
    for gpus in selection.gpus:
        for name in selection.models:
            for protocol in selection.protocols:
                for value, batch in selection.batches(name, gpus).items():
                    small = selected_run(selection, name, gpus, batch, corpus, split)
                    requests.append(
                        Request(
                            coordinates(name, protocol, gpus, chosen.sweep, value, "cluster"),
                            on_nodes(small, name, chosen.pipeline, nodes),
                            gpus,
                            conditions={"nodes": nodes.model_dump()},
                        )
                    )
    return requests
