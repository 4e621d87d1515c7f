"""Measure how fast one emulated GPU computes: the testbed's side of the similarity rule."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from tqdm import tqdm

from repro.catalog.experiments import Profile
from repro.catalog.models import model
from repro.launch.messages import Order, Site
from repro.launch.runs import testbed_run
from repro.launch.sites import open_site
from repro.observe.environment import provenance
from repro.testbed.quota import cores_per_rank, quota_parent
from repro.testbed.similarity import REFERENCE_MICRO_BATCH

# Models take turns, because a machine's speed drifts over seconds with what else runs on it.
_ROUNDS = 4


def emulated_cores(ranks: int) -> float | None:
    """The CPU quota of each of `ranks` emulated GPUs; None where quotas cannot be set."""
    return cores_per_rank(ranks) if quota_parent() is not None else None


def measure_compute(models: Sequence[str], ranks: int, corpus: Path, split: str) -> xr.Dataset:
    """Train every model on one rank alone, under the quota it would have among `ranks`.

    Returns
    -------
    Dataset
        `iteration_time_s` (model, iteration): whole iterations of `REFERENCE_MICRO_BATCH`
        sequences, with nothing to communicate.

    Raises
    ------
    ReproError
        A run failed.
    """
    cores = emulated_cores(ranks)
    times: dict[str, list[float]] = {name: [] for name in models}
    alone = Profile(
        models=tuple(models),
        gpus=(1,),
        warmup=2,
        iterations=8,
        save_every=0,
        validate_every=0,
        validation_batches=1,
    )
    turns = [name for _ in range(_ROUNDS) for name in models]
    with open_site(Site(topology=None, ranks=1, cores=cores)) as site:
        for name in tqdm(turns, desc="compute on one rank", unit="run"):
            run = testbed_run(name, REFERENCE_MICRO_BATCH, alone, corpus, split)
            outcome = site.train(Order(run, ranks=1, rates_gbps={}))
            times[name] += outcome.records[0].iteration_time_s
    return xr.Dataset(
        {
            "iteration_time_s": (
                ("model", "iteration"),
                np.array([times[name] for name in models]),
                {"long_name": "iteration time on one rank", "units": "s"},
            )
        },
        coords={"model": list(models)},
        attrs={
            "title": "Computing time of one emulated GPU",
            "quota_cores": "none" if cores is None else cores,
            "provenance": provenance(
                {
                    "rounds": _ROUNDS,
                    "warmup": alone.warmup,
                    "micro_batch_size": REFERENCE_MICRO_BATCH,
                    "models": {name: model(name).model_dump() for name in models},
                }
            ),
        },
    )
