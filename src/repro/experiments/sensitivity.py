"""Measurement of the sensitivity to the predicted full-scale computing time."""

import json
from dataclasses import replace

import xarray as xr

from repro.catalog.models.trainable import trainable
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.clusters import cluster
from repro.experiments.measurement import Measurement, measure, save
from repro.experiments.on_testbed import emulated_measurement
from repro.experiments.sources import corpus_split
from repro.paths import ENWIKI
from repro.predict.explore.experiments.configurations import compute_time
from repro.results.merging import merge


def get_sensitivity(selection: Selection, output: str = "") -> xr.Dataset:
    """Measure one model at both ends of the interval of its predicted full-scale computing time.

    Returns
    -------
    Dataset
        As `get_results` returns, with one more dimension `mfu`: the fraction of the GPU's peak at
        either computing time.
    """
    dataset = merge([measure(one) for one in sensitivity_measurements(selection)])
    if "mfu" in dataset:
        about = {"long_name": "fraction of the GPU's peak at full scale", "units": "1"}
        dataset["mfu"].attrs = about
    return save(dataset, output)


def sensitivity_measurements(selection: Selection) -> list[Measurement]:
    """Return the measurements at both ends of that interval.

    They are one measurement if both need the same ranks, so that all runs are interleaved.
    """
    entry, name = cluster(selection.experiment.cluster), selection.models[0]
    predicted = compute_time(trainable(name), entry, max(selection.micro_batch_sizes(name)))
    ends = []
    for end_s in (predicted.low_s, predicted.high_s):
        end = emulated_measurement(selection, ENWIKI, corpus_split(), end_s / predicted.value_s)
        mfu = predicted.mfu * predicted.value_s / end_s
        requests = tuple(
            replace(request, coordinates={**request.coordinates, "mfu": mfu})
            for request in end.requests
        )
        similarity = {f"MFU {mfu:.3f}": json.loads(str(end.attributes["similarity"]))}
        attributes = {**end.attributes, "similarity": json.dumps(similarity)}
        ends.append(replace(end, name="sensitivity", requests=requests, attributes=attributes))
    low, high = ends
    if low.target != high.target:
        return ends
    return [replace(low, requests=low.requests + high.requests)]
