"""Get an experiment's results from the source that a notebook asks for."""

from dataclasses import replace
from pathlib import Path

import xarray as xr

from repro.catalog.models.trainable import trainable
from repro.catalog.studies.collectives import SweepSelection
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.clusters import cluster
from repro.corpus.config import read_corpus_config
from repro.experiments.computing import measure_missing
from repro.experiments.look_up import look_up
from repro.experiments.on_nodes import resolve_on_nodes
from repro.experiments.on_testbed import resolve_on_testbed
from repro.experiments.resolved import Resolved
from repro.experiments.sweeps import resolve_sweep
from repro.launch.carry_out import carry_out
from repro.launch.cases import in_dimension
from repro.launch.following import wait_until_measured
from repro.launch.journal import Journal
from repro.paths import ENWIKI, RESULTS, find
from repro.predict.explore.experiments.configurations import compute_time
from repro.results.merging import merge
from repro.results.store import write_dataset

_MEASURED = ("testbed", "cluster")


def obtain(
    selection: Selection | SweepSelection, output: str = "", begins: str | None = None
) -> xr.Dataset:
    """Resolve a selection, carry it out and write its dataset; or look it up.

    Parameters
    ----------
    output : str
        The netCDF file to write, relative to the project's root; by default one below
        `results/adhoc/` that is named by the selection.
    begins
        An experiment whose own dataset is measured next and need not have again what is measured
        here; by default, for an experiment's own dataset, the one that its parameters name.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, or of `repro.results.collectives`. Attribute
        `not_run` is a JSON object from what could not run here to the reason; without variables if
        nothing could. Of what was measured, `asked` is what ranks were told.

    Raises
    ------
    ReproError
        A run failed.
    """
    path = RESULTS.parent / (output or f"results/adhoc/{selection.label}.nc")
    journal = Journal(path)
    if isinstance(selection, Selection) and path == own_path(selection.name):
        begins = begins or selection.experiment.begins
    if selection.source in _MEASURED:
        if isinstance(selection, Selection) and selection.source == "testbed":
            measure_missing(selection.models, ENWIKI, _split())
        dataset = carried_out(resolve(selection), journal, path)
    else:
        dataset = look_up(selection)
    return finish(dataset, path, journal, Journal(own_path(begins)) if begins else None)


def own_path(name: str) -> Path:
    """Where the pipeline has an experiment's dataset."""
    return RESULTS / f"{name}.nc"


def resolve(selection: Selection | SweepSelection) -> Resolved:
    """Fix every number of what is to be measured, and run nothing.

    Raises
    ------
    ReproError
        The computing times of the testbed were not measured, or not on this machine.
    """
    if isinstance(selection, SweepSelection):
        return resolve_sweep(selection)
    of_source = resolve_on_testbed if selection.source == "testbed" else resolve_on_nodes
    return of_source(selection, ENWIKI, _split())


def _split() -> str:
    return read_corpus_config(find("params/corpus.yaml")).split


def obtain_sensitivity(selection: Selection, output: str = "") -> xr.Dataset:
    """Measure one model at both ends of the interval of its predicted full-scale computing time.

    Returns
    -------
    Dataset
        As `obtain` does, with one more dimension `mfu`: the fraction of the GPU's peak that either
        computing time amounts to.
    """
    path = RESULTS.parent / (output or f"results/adhoc/sensitivity-{selection.label}.nc")
    journal = Journal(path)
    dataset = merge([carried_out(one, journal, path) for one in resolve_sensitivity(selection)])
    if "mfu" in dataset:
        about = {"long_name": "fraction of the GPU's peak at full scale", "units": "1"}
        dataset["mfu"].attrs = about
    return finish(dataset, path, journal)


def resolve_sensitivity(selection: Selection) -> list[Resolved]:
    """A selection of one model at both ends of that interval: on one set of ranks where both ask
    for the same, so that they take turns."""
    entry, name = cluster(selection.experiment.cluster), selection.models[0]
    predicted = compute_time(trainable(name), entry, max(selection.micro_batch_sizes(name)))
    both = []
    for end_s in (predicted.low_s, predicted.high_s):
        resolved = resolve_on_testbed(selection, ENWIKI, _split(), end_s / predicted.value_s)
        mfu = predicted.mfu * predicted.value_s / end_s
        # What the cases have of it differs; each has its own among its inputs.
        attributes = {k: v for k, v in resolved.attributes.items() if k != "similarity"}
        cases = tuple(in_dimension(case, "mfu", mfu, f"MFU {mfu:.3f}") for case in resolved.cases)
        both.append(replace(resolved, cases=cases, attributes=attributes))
    low, high = both
    if low.where != high.where:
        return both
    return [replace(low, cases=low.cases + high.cases)]


def carried_out(resolved: Resolved, journal: Journal, path: Path) -> xr.Dataset:
    """The dataset of what is resolved; what the journal has is not run again."""
    wait_until_measured(resolved.cases, journal)
    # Ranks on real nodes write beside the output.
    logs = path.with_suffix(".logs")
    return resolved.describe(
        *carry_out(resolved.cases, resolved.where, journal, logs, resolved.title)
    )


def finish(
    dataset: xr.Dataset, path: Path, journal: Journal, following: Journal | None = None
) -> xr.Dataset:
    """Write a complete dataset; only then are its parts handed on to the journal of what follows,
    and forgotten. Where nothing can be run, those that were run elsewhere are kept."""
    write_dataset(dataset, path)
    if dataset.data_vars:
        if following:
            journal.hand_on(following)
        journal.clear()
    return dataset
