"""Runs whose communication is logged: one model in several layouts."""

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any, get_args

import xarray as xr

from repro.catalog.parallel.layouts import Layout, read_plan
from repro.catalog.reading import choose
from repro.catalog.studies.communication import CommunicationStudy, read_communication_study
from repro.catalog.studies.experiments import Swept
from repro.catalog.studies.selection import SOURCES, select
from repro.errors import ReproError
from repro.experiments.obtain import carried_out, finish, resolve
from repro.experiments.resolved import Resolved
from repro.launch.cases import Case, in_dimension
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
    return laid_out(
        case,
        name,
        {"layout": name},
        # The replicas are fewer, and share the same batch.
        microbatches=run.microbatches * layout.replica_ranks,
        warmup=study.warmup,
        iterations=study.iterations,
    )


def laid_out(case: Case[Any], plan: str, named: dict[str, str], **changes: Any) -> Case[Any]:
    """A case in the layout of a plan, with a log of what it communicates.

    Parameters
    ----------
    named
        Of its dataset, one more dimension with one value.
    **changes
        Of its `TrainingRun`.

    Raises
    ------
    ReproError
        The layout takes another number of GPUs.
    """
    layout = read_plan(plan)
    if layout.ranks != case.order.ranks:
        raise ReproError(
            f"layout {plan}: takes {layout.ranks} GPUs, the case has {case.order.ranks}"
        )
    order = replace(
        case.order,
        run=replace(
            case.order.run,
            tensor_parallel=layout.tensor_parallel,
            sequence_parallel=layout.sequence_parallel,
            pipeline_parallel=layout.pipeline_parallel,
            distributed_optimizer=layout.zero == 1,
            most_iterations=None,
            log_communication=True,
            **changes,
        ),
        # Ranks that split matrices are in no proportion to one that has the whole model.
        passes_s=(),
    )
    ((dimension, value),) = named.items()
    one = in_dimension(case, dimension, value, value)
    return replace(
        one,
        order=order,
        inputs={**one.inputs, "order": asdict(order)},
        dataset=partial(_without_sweep, one),
        series=None,
    )


def _without_sweep(case: Case[Any], outcome: Outcome | OutOfMemory) -> xr.Dataset:
    dataset = case.dataset(outcome)
    swept = [name for name in get_args(Swept) if name in dataset.dims]
    return dataset.squeeze(swept, drop=True)


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
