"""Runs whose messages are compressed: timed on the testbed, beside what they are trained to."""

from dataclasses import replace

import xarray as xr

from repro.catalog.reading import choose
from repro.catalog.studies.compression import read_compression_study
from repro.catalog.studies.selection import SOURCES, select
from repro.experiments.communication import laid_out
from repro.experiments.losses import known_losses
from repro.experiments.obtain import carried_out, finish, resolve
from repro.experiments.resolved import Resolved
from repro.launch.journal import Journal
from repro.paths import RESULTS
from repro.results.merging import merge
from repro.results.store import not_run

_TESTBED = "testbed"


def obtain_compression(
    source: str = _TESTBED, protocol: str = "all", profile: str = "default", output: str = ""
) -> xr.Dataset:
    """Time `params/compression.yaml`'s schemes on the testbed, and train them for their loss.

    Parameters
    ----------
    source
        One of `SOURCES`; only on the testbed there is something to train with.
    protocol
        Of the experiment whose model it is.
    profile
        How many iterations are timed, and how many seeds and steps are trained.
    output
        The netCDF file to write, relative to the project's root.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, with one more dimension `scheme`; and
        `repro.results.compression.loss_dataset` of every scheme and seed, with `spectra_dataset`.

    Raises
    ------
    ReproError
        A value is unknown, a codec's library is missing, or a run failed.
    """
    study = read_compression_study()
    path = RESULTS.parent / (output or f"results/adhoc/compression-{source}-{profile}.nc")
    journal = Journal(path)
    if choose("source", source, {known: known for known in SOURCES}) != _TESTBED:
        reason = {source: "schemes are trained on emulated nodes; what is predicted stands below"}
        return finish(not_run(reason, title=study.title), path, journal)
    resolved = resolve_compression(protocol, profile)
    found = carried_out(resolved, journal, path)
    # Where nothing can be measured, nothing is trained.
    if not resolved.missing:
        found = merge([found, known_losses(profile)])
    return finish(found, path, journal)


def resolve_compression(protocol: str = "all", profile: str = "default") -> Resolved:
    """What is timed, and nothing run."""
    study = read_compression_study()
    timed, trained = study.timed, study.trained
    name = choose("profile", profile, timed.models)
    selection = select(timed.experiment, _TESTBED, protocol, name, trained.gpus, profile)
    resolved = resolve(selection)
    return replace(
        resolved,
        title="compression",
        cases=tuple(
            laid_out(
                case,
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
            for case in resolved.cases
        ),
        attributes={
            **resolved.attributes,
            "title": study.title,
            "published_in": study.source,
            "experiment": "compression",
        },
        parameters={**resolved.parameters, "compression": study.model_dump()},
    )
