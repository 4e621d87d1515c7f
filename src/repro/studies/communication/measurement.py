"""Measurement with a communication log: one model in several layouts."""

import json
from dataclasses import replace
from typing import Any

import xarray as xr

from repro.catalog.parallel.layouts import Layout, read_plan
from repro.catalog.reading import choose
from repro.catalog.studies.communication import read_communication_study
from repro.catalog.studies.experiments import SWEPT
from repro.catalog.studies.selection import SOURCES, select
from repro.errors import ReproError
from repro.experiments.measurement import Measurement, measure, save
from repro.experiments.sources import measurement_of
from repro.launch.request import Request
from repro.results.store import not_run

_LOGGED = ("testbed", "cluster")


def get_communication(
    source: str = "testbed", protocol: str = "all", profile: str = "default", output: str = ""
) -> xr.Dataset:
    """Train `params/communication.yaml`'s model in every layout, and log its communication.

    Parameters
    ----------
    source
        One of `SOURCES`; only the testbed and clusters have a log.
    protocol, profile
        Protocol and profile of the experiment whose model it is.
    output
        NetCDF file to write, relative to the project. Empty: none.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, with one more dimension `layout`.

    Raises
    ------
    ReproError
        A value is unknown, a layout takes another number of GPUs, or a run failed.
    """
    if choose("source", source, {known: known for known in SOURCES}) not in _LOGGED:
        reason = {source: "it has no log; the analytical volumes below need no run"}
        return save(not_run(reason, title=read_communication_study().title), output)
    return save(measure(communication_measurement(source, protocol, profile)), output)


def measure_profile(profile: str) -> xr.Dataset:
    """Measure the study's dataset of the pipeline."""
    return get_communication(profile=profile)


def communication_measurement(
    source: str = "testbed", protocol: str = "all", profile: str = "default"
) -> Measurement:
    """Return the measurement of the study, with every number fixed."""
    study = read_communication_study()
    selection = select(study.experiment, source, protocol, study.model, study.gpus, profile)
    experiment = measurement_of(selection)
    requests = [
        with_layout(
            request,
            name,
            {"layout": name},
            # Fewer replicas process the same batch.
            microbatches=request.run.microbatches * read_plan(name).replica_ranks,
            warmup=study.warmup,
            iterations=study.iterations,
        )
        for name in study.layouts
        for request in experiment.requests
        if request.run.micro_batch_size == study.micro_batch_size
    ]
    return replace(
        experiment,
        name="communication",
        requests=tuple(requests),
        attributes={
            **experiment.attributes,
            "title": study.title,
            "published_in": study.source,
            "experiment": "communication",
        },
        parameters={**experiment.parameters, "communication": study.model_dump()},
    )


def with_layout(
    request: Request[Any], plan: str, named: dict[str, str], **changes: Any
) -> Request[Any]:
    """Return a request in the layout of a plan, with a log of its communication.

    Parameters
    ----------
    named
        Coordinate of the new request, which replaces that of a sweep.
    **changes
        Other fields of its `TrainingRun`.

    Raises
    ------
    ReproError
        The layout takes another number of GPUs.
    """
    layout = read_plan(plan)
    if layout.ranks != request.ranks:
        raise ReproError(
            f"layout {plan}: takes {layout.ranks} GPUs, the request has {request.ranks}"
        )
    unswept = {name: at for name, at in request.coordinates.items() if name not in SWEPT}
    return replace(
        request,
        coordinates={**unswept, **named},
        run=replace(
            request.run,
            tensor_parallel=layout.tensor_parallel,
            sequence_parallel=layout.sequence_parallel,
            pipeline_parallel=layout.pipeline_parallel,
            distributed_optimizer=layout.zero == 1,
            most_iterations=None,
            log_communication=True,
            **changes,
        ),
        # Ranks with a part of each matrix have no fixed ratio to one with the whole model.
        passes_s=(),
    )


def requested_layouts(results: xr.Dataset) -> dict[str, tuple[dict[str, Any], Layout]]:
    """Return each layout's `TrainingRun` as JSON, and the layout, by name."""
    found = {}
    for request in json.loads(results.attrs["requests"]):
        run, name = request["run"], request["coordinates"]["layout"]
        layout = replace(
            read_plan(name),
            micro_batch_size=run["micro_batch_size"],
            micro_batches=run["microbatches"],
        )
        found[name] = run, layout
    return found
