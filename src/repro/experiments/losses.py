"""Trainings whose messages are compressed, for their loss: at full speed, whatever else runs."""

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
from repro.corpus.config import read_corpus_config
from repro.experiments.obtain import carried_out, finish
from repro.experiments.resolved import Resolved
from repro.experiments.runs import testbed_run
from repro.launch.cases import Case
from repro.launch.journal import Journal
from repro.launch.messages import Order, Site
from repro.paths import ENWIKI, RESULTS, find
from repro.results.compression import loss_dataset, spectra_dataset
from repro.results.store import read_dataset
from repro.train.records import Spectrum, TrainingRun

OF_PIPELINE = "results/losses.nc"


def known_losses(profile: str) -> xr.Dataset:
    """What `train_losses` finds; what the pipeline or an earlier call trained with the same
    parameters is not trained again."""
    resolved = resolve_losses(read_compression_study(), profile)
    asked = {**resolved.attributes, "asked": resolved.asked_json()}
    for path in (_path(OF_PIPELINE), _path(_by_itself(profile))):
        if path.exists() and asked.items() <= (found := read_dataset(path)).attrs.items():
            return found
    return train_losses(profile, _by_itself(profile))


def train_losses(profile: str, output: str) -> xr.Dataset:
    """Train `params/compression.yaml`'s schemes for their loss, and one rank for its spectra.

    Parameters
    ----------
    profile
        How many seeds and steps.
    output
        The netCDF file to write, relative to the project's root.

    Returns
    -------
    Dataset
        `repro.results.compression.loss_dataset` of every scheme and seed, with `spectra_dataset`.

    Raises
    ------
    ReproError
        The profile is unknown, a codec's library is missing, or a run failed.
    """
    study, path = read_compression_study(), _path(output)
    journal = Journal(path)
    found = carried_out(resolve_losses(study, profile), journal, path)
    if found.data_vars:
        found = found.assign(_spectra(study, profile))
    return finish(found, path, journal)


def _path(output: str) -> Path:
    return RESULTS.parent / output


def _by_itself(profile: str) -> str:
    return f"results/adhoc/losses-{profile}.nc"


def resolve_losses(study: CompressionStudy, profile: str) -> Resolved:
    """What is trained, and nothing run."""
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
        attributes={"spectra": study.spectra.model_dump_json()},
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
        read_corpus_config(find("params/corpus.yaml")).split,
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
