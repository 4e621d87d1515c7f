"""Measured operators and training iterations of this machine's CPU."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import get_args

import torch
import xarray as xr
from tqdm import tqdm

from repro.catalog.models.papers import Family
from repro.catalog.studies.experiments import Profile
from repro.catalog.studies.operators import OperatorStudy, read_operator_study
from repro.corpus.config import read_corpus_config
from repro.experiments.machine.iterations import (
    Case,
    iteration_dataset,
    operator_points,
)
from repro.experiments.measurement import results_store
from repro.experiments.runs import testbed_run
from repro.launch.store import corpus_digest
from repro.logs.operator_trace import TracedCall, read_cpu_trace
from repro.observe.environment import computing_machine, provenance
from repro.observe.operator_trace import trace_of
from repro.paths import ENWIKI, find
from repro.predict.operators.trace_replay import FEWER, JUDGED
from repro.train.megatron.groups import alone
from repro.train.megatron.steps import Batch
from repro.train.operators import operator_s
from repro.train.run import device_scope, iterate
from repro.train.timed import cpu_s
from repro.train.training import Training, set_up

# Total time of a model's iterations in one round.
_ITERATIONS_S = 0.3


@dataclass(frozen=True)
class _Iteration:
    """An iteration of a model on one micro batch, which can be repeated."""

    model: str
    samples: int
    state: Training
    batch: Batch

    def time_s(self) -> float:
        """Return the iteration's CPU time, in seconds."""
        return cpu_s(partial(iterate, self.state, [self.batch]), total_s=_ITERATIONS_S)

    def calls(self) -> list[TracedCall]:
        """Return the iteration's calls."""
        parameters = sum(one.numel() for one in self.state.module.parameters())
        text = trace_of(partial(iterate, self.state, [self.batch]))
        return read_cpu_trace(text, self.state.run.precision, parameters)


def measure_operators(profile_name: str) -> xr.Dataset:
    """Measure everything in `params/operator_study.yaml` on one thread.

    Each round measures every iteration and every operator once.

    Returns
    -------
    Dataset
        By `repro.experiments.machine.iterations.iteration_dataset`.

    Raises
    ------
    ReproError
        The corpus is missing, or the profile is unknown.
    """
    study = read_operator_study()
    study.profile(profile_name)
    inputs = {
        "operators": study.model_dump(mode="json"),
        "profile": profile_name,
        "machine": computing_machine(),
        "corpus": [corpus_digest(ENWIKI, family) for family in get_args(Family)],
    }
    return results_store().find_or_run(inputs, "cpu", partial(_measure, study, profile_name))


def _measure(study: OperatorStudy, profile_name: str) -> xr.Dataset:
    profile = study.profile(profile_name)
    torch.set_num_threads(1)
    # Without this, models would run on a GPU if there is one.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # The profiler prints a line at each start and stop.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with device_scope(), alone(), tempfile.TemporaryDirectory() as scratch:
        iterations = list(_iterations(study, Path(scratch)))
        cases = [
            Case(one.model, one.samples, _role(study, one.samples), [], one.calls())
            for one in iterations
        ]
        times = {point: list[float]() for point in operator_points(profile, cases)}
        for _ in tqdm(range(profile.rounds), desc="rounds", leave=False):
            for case, iteration in zip(cases, iterations, strict=True):
                case.times_s.append(iteration.time_s())
            for (operator, _, sizes), found in times.items():
                found.append(operator_s(operator, sizes))
    return iteration_dataset(cases, times).assign_attrs(
        title="Operators of this machine's CPU, and iterations predicted from them",
        source="testbed",
        profile=profile_name,
        provenance=provenance(study.model_dump(mode="json")),
    )


def _role(study: OperatorStudy, samples: int) -> str:
    return FEWER if samples == study.micro_batches[0] else JUDGED


def _iterations(study: OperatorStudy, scratch: Path) -> Iterator[_Iteration]:
    once = Profile(models=(), gpus=(1,), warmup=1, iterations=1)
    split = read_corpus_config(find("params/corpus.yaml")).split
    for name, samples in product(study.models, study.micro_batches):
        state = set_up(testbed_run(name, once, ENWIKI, split, micro_batch_size=samples), scratch)
        yield _Iteration(name, samples, state, next(state.training))
