"""Runs whose communication is logged: one model in several layouts."""

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import xarray as xr

from repro.catalog.communication_study import CommunicationStudy, read_communication_study
from repro.catalog.layouts import Layout, read_plan
from repro.catalog.reading import choose
from repro.catalog.selection import SOURCES, select
from repro.errors import ReproError
from repro.experiments.obtain import carried_out, finish, resolve
from repro.experiments.resolved import Resolved
from repro.launch.cases import Case
from repro.launch.journal import Journal
from repro.paths import RESULTS
from repro.results.outcome import Outcome, OutOfMemory
from repro.results.store import not_run

_LOGGED = ("testbed", "cluster")


def obtain_communication(
    source: str = "testbed", protocol: str = "all", profile: str = "default", output: str = ""
) -> xr.Dataset:
    """Train `params/communication.yaml`'s model in every layout, and log what it communicates.

    Parameters
    ----------
    source
        One of `SOURCES`; nothing is logged of `predicted` and `paper`.
    protocol, profile
        Of the experiment whose model it is.
    output
        The netCDF file to write, relative to the project's root.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, with one more dimension `layout`.

    Raises
    ------
    ReproError
        A value is unknown, a layout takes another number of GPUs, or a run failed.
    """
    study = read_communication_study()
    path = RESULTS.parent / (output or f"results/adhoc/communication-{source}-{profile}.nc")
    journal = Journal(path)
    if choose("source", source, {known: known for known in SOURCES}) not in _LOGGED:
        reason = {source: "nothing is logged of it; the closed forms below need no run"}
        return finish(not_run(reason, title=study.title), path, journal)
    resolved = resolve_communication(source, protocol, profile)
    return finish(carried_out(resolved, journal, path), path, journal)


def resolve_communication(
    source: str = "testbed", protocol: str = "all", profile: str = "default"
) -> Resolved:
    """What the study asks of its source, and nothing run."""
    study = read_communication_study()
    selection = select(study.experiment, source, protocol, study.model, study.gpus, profile)
    resolved = resolve(selection)
    cases = [case for case in resolved.cases if _has_batch(case, study)]
    return replace(
        resolved,
        title="communication",
        cases=tuple(_logged(case, name, study) for name in study.layouts for case in cases),
        attributes={
            **resolved.attributes,
            "title": study.title,
            "published_in": study.source,
            "experiment": "communication",
        },
        parameters={**resolved.parameters, "communication": study.model_dump()},
    )


def _has_batch(case: Case[Any], study: CommunicationStudy) -> bool:
    return bool(case.order.run.micro_batch_size == study.micro_batch_size)


def _logged(case: Case[Any], name: str, study: CommunicationStudy) -> Case[Any]:
    """A case in another layout, with a log."""
    layout, run = read_plan(name), case.order.run
    if layout.ranks != study.gpus:
        raise ReproError(f"layout {name}: takes {layout.ranks} GPUs, gpus is {study.gpus}")
    order = replace(
        case.order,
        run=replace(
            run,
            tensor_parallel=layout.tensor_parallel,
            sequence_parallel=layout.sequence_parallel,
            pipeline_parallel=layout.pipeline_parallel,
            distributed_optimizer=layout.zero == 1,
            # The replicas are fewer, and share the same batch.
            microbatches=run.microbatches * layout.replica_ranks,
            warmup=study.warmup,
            iterations=study.iterations,
            most_iterations=None,
            log_communication=True,
        ),
    )
    return replace(
        case,
        label=f"{case.label}, {name}",
        order=order,
        inputs={**case.inputs, "order": asdict(order), "layout": name},
        dataset=partial(_by_layout, case, name),
        series=None,
    )


def _by_layout(case: Case[Any], name: str, outcome: Outcome | OutOfMemory) -> xr.Dataset:
    return case.dataset(outcome).squeeze("micro_batch_size", drop=True).expand_dims(layout=[name])


def asked_layouts(results: xr.Dataset) -> dict[str, tuple[dict[str, Any], Layout]]:
    """What each layout's ranks were told (`TrainingRun` as JSON), and the layout, by name."""
    found = {}
    for asked in json.loads(results.attrs["asked"]):
        run = asked["order"]["run"]
        layout = replace(
            read_plan(asked["layout"]),
            micro_batch_size=run["micro_batch_size"],
            micro_batches=run["microbatches"],
        )
        found[asked["layout"]] = run, layout
    return found
