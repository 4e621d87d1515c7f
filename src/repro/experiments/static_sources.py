"""Sources for which nothing runs: predictions, published values and the reference run."""

import json

import xarray as xr

from repro.catalog.models.trainable import trainable
from repro.catalog.studies.collectives import SweepSelection
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.clusters import cluster
from repro.errors import NotRunHere
from repro.experiments.sweeps import sweep_attributes, sweep_parameters
from repro.observe.environment import provenance
from repro.predict.explore.experiments.collective_sweeps import predict_sweep, published_sweep
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.predict.parameters import calibration
from repro.results.reference import read_reference
from repro.results.store import has_runs, not_run

_PAPER = "published values are claims, not series; the table below has them"


def load_results(selection: Selection | SweepSelection) -> xr.Dataset:
    """Return the dataset of a selection whose source is `predicted`, `reference` or `paper`.

    If there is none, it has no variables, and attribute `not_run` has the reason.
    """
    if isinstance(selection, SweepSelection):
        return _sweep(selection)
    if selection.source == "paper":
        reasons = {selection.source: _PAPER}
        return not_run(reasons, **_named(selection))
    if selection.source == "reference":
        return _of_reference(selection)
    entry = cluster(selection.experiment.cluster)
    return predict_experiment(selection).assign_attrs(
        title=f"{selection.experiment.title}, predicted",
        published_in=selection.experiment.source,
        experiment=selection.name,
        not_run=json.dumps({}),
        provenance=provenance(
            {
                "experiment": selection.experiment.model_dump(),
                "cluster": entry.model_dump(),
                "calibration": calibration(entry.calibration).model_dump(exclude={"covariance"}),
                "models": {name: trainable(name).model_dump() for name in selection.models},
            }
        ),
    )


def _of_reference(selection: Selection) -> xr.Dataset:
    kept = read_reference(selection.name)
    if not has_runs(kept):
        return kept
    selected = {"model": selection.models, "protocol": selection.protocols, "gpus": selection.gpus}
    absent = [str(one) for dim in selected for one in selected[dim] if one not in kept[dim].values]
    if absent:
        return not_run(
            {"reference": f"it was run without {', '.join(absent)}"}, **_named(selection)
        )
    return kept.sel({dim: list(values) for dim, values in selected.items()})


def _named(selection: Selection) -> dict[str, str]:
    return {"experiment": selection.name, "title": selection.experiment.title}


def _sweep(selection: SweepSelection) -> xr.Dataset:
    sources = {"predicted": predict_sweep, "paper": published_sweep, "reference": _no_reference}
    try:
        dataset, reasons = sources[selection.source](selection), {}
    except NotRunHere as reason:
        dataset, reasons = xr.Dataset(), {selection.source: str(reason)}
    return dataset.assign_attrs(
        **sweep_attributes(selection),
        not_run=json.dumps(reasons),
        provenance=provenance(sweep_parameters(selection)),
    )


def _no_reference(_: SweepSelection) -> xr.Dataset:
    raise NotRunHere("the reference run has no collectives")
