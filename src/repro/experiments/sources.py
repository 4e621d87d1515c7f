"""Results of an experiment or a sweep of collectives, from the source that a notebook names."""

import xarray as xr

from repro.catalog.studies.collectives import SweepSelection
from repro.catalog.studies.selection import Selection
from repro.corpus.config import read_corpus_config
from repro.experiments.computing import measure_missing
from repro.experiments.measurement import Measurement, measure, save
from repro.experiments.on_nodes import node_measurement
from repro.experiments.on_testbed import emulated_measurement
from repro.experiments.static_sources import load_results
from repro.experiments.sweeps import sweep_measurement
from repro.paths import ENWIKI, find

_MEASURED = ("testbed", "cluster")


def get_results(selection: Selection | SweepSelection, output: str = "") -> xr.Dataset:
    """Return the results of a selection: measured, or loaded if its source needs no run.

    Parameters
    ----------
    output : str
        NetCDF file to write, relative to the project. Empty: none.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, or of `repro.results.collectives`. Attribute
        `not_run` is a JSON object from configurations that could not run here to the reason.
        Without variables if nothing could.

    Raises
    ------
    ReproError
        A run failed.
    """
    if selection.source not in _MEASURED:
        return save(load_results(selection), output)
    if isinstance(selection, Selection) and selection.source == "testbed":
        measure_missing(selection.models, ENWIKI, corpus_split())
    return save(measure(measurement_of(selection)), output)


def measurement_of(selection: Selection | SweepSelection) -> Measurement:
    """Return the measurement of a selection, with every number fixed.

    Raises
    ------
    ReproError
        The computing times of the testbed were not measured, or not on this machine.

    Examples
    --------
    >>> from repro.catalog.studies.collectives import select_sweep
    >>> measurement_of(select_sweep("pinnacles", protocol="rdma", gpus=2)).requests[0].label
    'rdma, 2 GPUs'
    """
    if isinstance(selection, SweepSelection):
        return sweep_measurement(selection)
    of_source = emulated_measurement if selection.source == "testbed" else node_measurement
    return of_source(selection, ENWIKI, corpus_split())


def corpus_split() -> str:
    """Return the weights of training and validation data in `params/corpus.yaml`."""
    return read_corpus_config(find("params/corpus.yaml")).split
