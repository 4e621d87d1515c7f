"""Get an experiment's results from the source that a notebook asks for."""

import json
from pathlib import Path

import xarray as xr

from repro.catalog.clusters import cluster
from repro.catalog.collectives import SweepSelection
from repro.catalog.models import model
from repro.catalog.selection import Selection
from repro.corpus.config import read_corpus_config
from repro.errors import NotRunHere
from repro.launch.cluster import measure_on_cluster
from repro.launch.collectives import describe, measure_collectives
from repro.launch.experiment import measure
from repro.launch.journal import Journal
from repro.observe.environment import provenance
from repro.paths import ENWIKI, PARAMS, RESULTS
from repro.predict.collective_sweeps import predict_sweep, published_sweep
from repro.predict.compute import compute_time
from repro.predict.experiments import predict_experiment
from repro.predict.parameters import calibration
from repro.results.store import not_run, write_dataset
from repro.testbed.similarity import REFERENCE_MICRO_BATCH

_PAPER = "published values are claims, not series; the table below has them"


def obtain(selection: Selection, output: str = "") -> xr.Dataset:
    """Run a selection and write its dataset.

    Parameters
    ----------
    selection : Selection
        What to run.
    output : str
        The netCDF file to write, relative to the project's root; by default one below
        `results/adhoc/` that is named by the selection.

    Returns
    -------
    Dataset
        By the schema; without variables, and with the reason in attribute `not_run`, if the source
        cannot run here.

    Raises
    ------
    ReproError
        A run failed.
    """
    path = _path(selection, output)
    journal = Journal(path)
    if selection.source == "testbed":
        dataset = _measure(selection, journal)
    elif selection.source == "cluster":
        split = read_corpus_config(PARAMS / "corpus.yaml").split
        dataset = measure_on_cluster(selection, ENWIKI, split, journal, _logs(path))
    elif selection.source == "predicted":
        dataset = _predict(selection)
    else:
        dataset = not_run(
            {selection.source: _PAPER},
            experiment=selection.name,
            title=selection.experiment.title,
        )
    return _finish(dataset, path, journal)


def obtain_sensitivity(selection: Selection, output: str = "") -> xr.Dataset:
    """Measure one model at both ends of the interval of its predicted full-scale computing time.

    Returns
    -------
    Dataset
        As `obtain` does, with one more dimension `mfu`: the fraction of the GPU's peak that either
        computing time amounts to.
    """
    path = _path(selection, output)
    journal = Journal(path)
    entry = cluster(selection.experiment.cluster)
    predicted = compute_time(model(selection.models[0]), entry, REFERENCE_MICRO_BATCH)
    ends = (predicted.low_s, predicted.high_s)
    datasets = [_measure(selection, journal, end / predicted.value_s) for end in ends]
    fractions = [predicted.mfu * predicted.value_s / end for end in ends]
    dataset = xr.concat(
        [part.expand_dims(mfu=[mfu]) for part, mfu in zip(datasets, fractions, strict=True)],
        dim="mfu",
        join="outer",
        combine_attrs="drop_conflicts",
    )
    dataset["mfu"].attrs = {"long_name": "fraction of the GPU's peak at full scale", "units": "1"}
    return _finish(dataset, path, journal)


def obtain_collectives(selection: SweepSelection, output: str = "") -> xr.Dataset:
    """Sweep a selection's collectives, or take what is predicted or published of them.

    Parameters
    ----------
    output : str
        As in `obtain`.

    Returns
    -------
    Dataset
        Raw times of the testbed and of GPUs (`repro.results.collectives`), else bandwidths; without
        variables, and with the reason in attribute `not_run`, if the source cannot run here.

    Raises
    ------
    ReproError
        A run failed.
    """
    path = RESULTS.parent / (output or f"results/adhoc/{_sweep_name(selection)}.nc")
    journal = Journal(path)
    if selection.source in ("testbed", "cluster"):
        return _finish(measure_collectives(selection, journal, _logs(path)), path, journal)
    sources = {"predicted": predict_sweep, "paper": published_sweep}
    try:
        dataset, reasons = sources[selection.source](selection), {}
    except NotRunHere as reason:
        dataset, reasons = xr.Dataset(), {selection.source: str(reason)}
    return _finish(describe(dataset, selection, reasons), path, journal)


def _sweep_name(selection: SweepSelection) -> str:
    return "-".join(
        [
            "collectives",
            selection.cluster_name,
            selection.source,
            selection.profile_name,
            "+".join(selection.protocols),
            "+".join(selection.collectives),
            "+".join(str(count) for count in selection.gpus),
        ]
    )


def _predict(selection: Selection) -> xr.Dataset:
    dataset = predict_experiment(selection)
    entry = cluster(selection.experiment.cluster)
    return dataset.assign_attrs(
        title=f"{selection.experiment.title}, predicted",
        published_in=selection.experiment.source,
        experiment=selection.name,
        not_run=json.dumps({}),
        provenance=provenance(
            {
                "experiment": selection.experiment.model_dump(),
                "cluster": entry.model_dump(),
                "calibration": calibration(entry.calibration).model_dump(exclude={"covariance"}),
                "models": {name: model(name).model_dump() for name in selection.models},
            }
        ),
    )


def _measure(selection: Selection, journal: Journal, compute_factor: float = 1.0) -> xr.Dataset:
    split = read_corpus_config(PARAMS / "corpus.yaml").split
    return measure(selection, ENWIKI, split, journal, compute_factor)


def _finish(dataset: xr.Dataset, path: Path, journal: Journal) -> xr.Dataset:
    """Write a complete dataset; only then may its parts be forgotten."""
    write_dataset(dataset, path)
    journal.clear()
    return dataset


def _logs(path: Path) -> Path:
    """Where ranks on real nodes write beside an output."""
    return path.with_suffix(".logs")


def _path(selection: Selection, output: str) -> Path:
    return RESULTS.parent / (output or f"results/adhoc/{_name(selection)}.nc")


def _name(selection: Selection) -> str:
    parts = [
        selection.name,
        selection.source,
        selection.profile_name,
        "+".join(selection.protocols),
        "+".join(selection.models),
        "+".join(str(count) for count in selection.gpus),
    ]
    chosen = selection.experiment
    if chosen.pipeline_parallel:
        parts.append(f"{chosen.pipeline_parallel}stages")
    if chosen.pipeline and chosen.micro_batch_size:
        parts.append(f"micro{chosen.micro_batch_size}")
    return "-".join(parts)
