"""Training with compressed communication for its loss, at full speed."""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from math import gcd
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import xarray as xr

from repro.catalog.parallel.layouts import read_plan
from repro.catalog.reading import choose
from repro.catalog.studies.compression import CompressionStudy, read_compression_study
from repro.catalog.studies.experiments import Profile
from repro.corpus.config import read_corpus_config
from repro.experiments.measurement import Measurement, measure, results_store
from repro.experiments.runs import testbed_run
from repro.launch.request import PoolSpec, Request, plain
from repro.launch.store import corpus_digest
from repro.observe.environment import computing_machine
from repro.paths import ENWIKI, find
from repro.studies.compression.tables import loss_dataset, spectra_dataset
from repro.train.records import Spectrum, TrainingRun


def train_losses(profile: str) -> xr.Dataset:
    """Train `params/compression.yaml`'s schemes for their loss, and one rank for its spectra.

    Parameters
    ----------
    profile
        Run size, which has a number of seeds and steps.

    Returns
    -------
    Dataset
        `loss_dataset` of every scheme and seed, with `spectra_dataset`.

    Raises
    ------
    ReproError
        The profile is unknown, a codec's library is missing, or a run failed.
    """
    found = measure(loss_measurement(profile))
    return found.assign(_spectra(read_compression_study(), profile)) if found.data_vars else found


def loss_measurement(profile: str) -> Measurement:
    """Return the measurement of the losses, with every number fixed."""
    study = read_compression_study()
    losses, trained, run = study.losses, study.trained, loss_run(study, profile)
    conditions = {"machine": computing_machine()}
    return Measurement(
        name="losses",
        target=PoolSpec(topology=None, ranks=trained.gpus, cores=None),
        requests=tuple(
            Request(
                {"scheme": name, "seed": run.seed + seed},
                replace(
                    run,
                    compression=choose("scheme", name, study.schemes),
                    seed=run.seed + seed,
                ),
                trained.gpus,
                conditions=conditions,
                dataset=loss_dataset,
            )
            for name in losses.schemes
            for seed in range(losses.seeds[profile])
        ),
        attributes={},
        parameters={"losses": losses.model_dump()},
    )


def loss_run(study: CompressionStudy, profile: str) -> TrainingRun:
    """Return the run that is trained for its loss, without compression, with the first seed."""
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


def _spectra(study: CompressionStudy, profile: str) -> xr.Dataset:
    """Train the model on one rank with the batch of all replicas, for its spectra."""
    run, replicas = loss_run(study, profile), read_plan(study.trained.plan).data_parallel
    alone = replace(
        run,
        pipeline_parallel=1,
        tensor_parallel=1,
        microbatches=run.microbatches * replicas,
        iterations=study.spectra.steps[profile],
    )
    every = gcd(alone.iterations, study.spectra.every)

    def watch() -> xr.Dataset:
        # A process has its own process groups.
        with (
            TemporaryDirectory() as scratch,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
        ):
            return spectra_dataset(process.submit(_watch, alone, every, Path(scratch)).result())

    corpus = corpus_digest(ENWIKI, alone.family)
    inputs = {"spectra": plain(asdict(alone)), "every": every, "corpus": corpus}
    return results_store().find_or_run(inputs, "training", watch)


def _watch(run: TrainingRun, every: int, scratch: Path) -> list[Spectrum]:
    """Train in this process, which alone needs torch, on the CPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from repro.train.spectra import watch_spectra

    return watch_spectra(run, every, scratch)
