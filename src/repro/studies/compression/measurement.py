"""Measurement of training with compressed communication: iteration times and losses."""

from dataclasses import replace

import xarray as xr

from repro.catalog.reading import choose
from repro.catalog.studies.compression import read_compression_study
from repro.catalog.studies.selection import SOURCES, select
from repro.experiments.measurement import Measurement, measure, save
from repro.experiments.sources import measurement_of
from repro.results.merging import merge
from repro.results.store import not_run
from repro.studies.communication.measurement import with_layout
from repro.studies.compression.losses import train_losses

_TESTBED = "testbed"


def get_compression(
    source: str = _TESTBED, protocol: str = "all", profile: str = "default", output: str = ""
) -> xr.Dataset:
    """Time `params/compression.yaml`'s schemes on the testbed, and train them for their loss.

    Parameters
    ----------
    source
        One of `SOURCES`; only the testbed can train them.
    protocol
        Protocol of the experiment whose model it is.
    profile
        Run size, which has a number of iterations, seeds and steps.
    output
        NetCDF file to write, relative to the project. Empty: none.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, with one more dimension `scheme`; and
        `loss_dataset` of every scheme and seed, with `spectra_dataset`.

    Raises
    ------
    ReproError
        A value is unknown, a codec's library is missing, or a run failed.
    """
    if choose("source", source, {known: known for known in SOURCES}) != _TESTBED:
        reason = {source: "schemes are trained on emulated nodes; predictions are below"}
        return save(not_run(reason, title=read_compression_study().title), output)
    timed = measure(compression_measurement(protocol, profile))
    # If nothing can be timed, nothing is trained.
    return save(merge([timed, train_losses(profile)]) if timed.data_vars else timed, output)


def measure_profile(profile: str) -> xr.Dataset:
    """Measure the study's dataset of the pipeline."""
    return get_compression(profile=profile)


def compression_measurement(protocol: str = "all", profile: str = "default") -> Measurement:
    """Return the measurement of the iteration times, with every number fixed."""
    study = read_compression_study()
    timed, trained = study.timed, study.trained
    name = choose("profile", profile, timed.models)
    selection = select(timed.experiment, _TESTBED, protocol, name, trained.gpus, profile)
    experiment = measurement_of(selection)
    return replace(
        experiment,
        name="compression",
        requests=tuple(
            with_layout(
                request,
                trained.plan,
                {"scheme": scheme},
                compression=choose("scheme", scheme, study.schemes),
                microbatches=trained.micro_batches,
                micro_batch_size=trained.micro_batch_size,
                learning_rate=trained.learning_rate,
                warmup=timed.warmup,
                iterations=timed.iterations[profile],
                save_every=0,
                validate_every=0,
            )
            for scheme in timed.schemes
            for request in experiment.requests
        ),
        attributes={
            **experiment.attributes,
            "title": study.title,
            "published_in": study.source,
            "experiment": "compression",
        },
        parameters={**experiment.parameters, "compression": study.model_dump()},
    )
