"""Runs whose messages are compressed: timed on the testbed, and trained for their loss."""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from math import gcd
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import xarray as xr

from repro.catalog.parallel.codecs import Compression
from repro.catalog.parallel.layouts import read_plan
from repro.catalog.reading import choose
from repro.catalog.studies.compression import CompressionStudy, read_compression_study
from repro.catalog.studies.experiments import Profile
from repro.catalog.studies.selection import SOURCES, select
from repro.corpus.config import read_corpus_config
from repro.experiments.communication import laid_out
from repro.experiments.obtain import carried_out, finish, resolve
from repro.experiments.resolved import Resolved
from repro.experiments.runs import testbed_run
from repro.launch.cases import Case
from repro.launch.journal import Journal
from repro.launch.messages import Order, Site
from repro.paths import ENWIKI, PARAMS, RESULTS
from repro.results.compression import has_losses, loss_dataset, spectra_dataset
from repro.results.merging import merge
from repro.results.store import not_run
from repro.train.records import Spectrum, TrainingRun

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
    parts = resolve_compression(protocol, profile)
    found = merge([carried_out(part, journal, path) for part in parts])
    if has_losses(found):
        found = found.assign(_spectra(study, profile))
    return finish(found, path, journal)


def resolve_compression(protocol: str = "all", profile: str = "default") -> list[Resolved]:
    """What is timed and what is trained for its loss, and nothing run."""
    study = read_compression_study()
    timed = _resolve_timed(study, protocol, profile)
    # Where nothing can be measured, nothing is trained.
    return [timed] if timed.missing else [timed, _resolve_losses(study, profile)]


def _resolve_timed(study: CompressionStudy, protocol: str, profile: str) -> Resolved:
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


def _resolve_losses(study: CompressionStudy, profile: str) -> Resolved:
    losses, trained = study.losses, study.trained
    run = loss_run(study, profile)
    return Resolved(
        title="losses",
        where=Site(topology=None, ranks=trained.gpus, cores=None),
        cases=tuple(
            _loss_case(name, choose("scheme", name, study.schemes), seed, run, trained.gpus)
            for name in losses.schemes
            for seed in range(losses.seeds[profile])
        ),
        attributes={},
        parameters={"losses": losses.model_dump()},
    )


def loss_run(study: CompressionStudy, profile: str) -> TrainingRun:
    """What is trained for its loss, without compression and with the first seed."""
    losses, trained = study.losses, study.trained
    layout, steps = read_plan(trained.plan), losses.steps[profile]
    asked = Profile(
        models=(),
        gpus=(trained.gpus,),
        warmup=1,
        iterations=steps,
        validate_every=gcd(steps, losses.validate_every),
        validation_batches=losses.validation_batches,
    )
    run = testbed_run(
        losses.model,
        asked,
        ENWIKI,
        read_corpus_config(PARAMS / "corpus.yaml").split,
        micro_batch_size=trained.micro_batch_size,
        microbatches=trained.micro_batches,
        stages=layout.pipeline_parallel,
    )
    return replace(run, tensor_parallel=layout.tensor_parallel, learning_rate=trained.learning_rate)


def _loss_case(
    name: str, compression: Compression, seed: int, run: TrainingRun, ranks: int
) -> Case[TrainingRun]:
    asked = replace(run, compression=compression, seed=run.seed + seed)
    order = Order(run=asked, ranks=ranks, rates_gbps={})
    return Case(
        label=f"{name}, seed {asked.seed}",
        protocol="loopback",
        order=order,
        inputs={"scheme": name, "seed": asked.seed, "trained": asdict(asked)},
        dataset=partial(loss_dataset, name, asked),
    )


def _spectra(study: CompressionStudy, profile: str) -> xr.Dataset:
    """Of the losses' model in one piece on one rank, with the batch of all replicas."""
    run, replicas = loss_run(study, profile), read_plan(study.trained.plan).data_parallel
    alone = replace(
        run,
        pipeline_parallel=1,
        tensor_parallel=1,
        microbatches=run.microbatches * replicas,
        iterations=study.spectra.steps[profile],
    )
    # Megatron's groups are a process's own.
    with (
        TemporaryDirectory() as scratch,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        every = gcd(alone.iterations, study.spectra.every)
        return spectra_dataset(process.submit(_watch, alone, every, Path(scratch)).result())


def _watch(run: TrainingRun, every: int, scratch: Path) -> list[Spectrum]:
    """What the process does, on a CPU as the ranks; only it needs torch."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from repro.train.spectra import watch_spectra

    return watch_spectra(run, every, scratch)
