"""Computing time and memory of one emulated GPU: the testbed's side of the similarity rule."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from repro.catalog.models.open_models import read_open_models
from repro.catalog.models.papers import Family
from repro.catalog.phases import COMPUTING
from repro.catalog.reading import choose
from repro.catalog.studies.experiments import EXPERIMENTS, Profile, experiment, most_gpus
from repro.errors import NotRunHere, ReproError
from repro.experiments.measurement import results_store
from repro.experiments.runs import testbed_run
from repro.experiments.this_machine import differences, emulated_gpu, means_here
from repro.launch.ranks.pool import open_pool
from repro.launch.request import PoolSpec, Request
from repro.launch.store import corpus_digest
from repro.observe.environment import provenance
from repro.paths import RESULTS
from repro.results.outcome import Outcome
from repro.results.store import not_run, read_dataset, why_not_run, write_dataset
from repro.testbed.ability import testbed_ability
from repro.testbed.speed import cores_per_rank
from repro.train.records import RankRecord, TrainingRun

# Computing takes a fixed time and a time per sequence. Three sizes determine both; other sizes are
# interpolated, or lie on the line through the last two.
_MICRO_BATCHES = (1, 4, 16)
# Configurations alternate, because a machine's speed drifts over seconds.
_ROUNDS = 2
_LAYOUTS = {False: "data", True: "pipeline"}


def compute_path() -> Path:
    """Return the file of the computing times of the experiments' models."""
    return RESULTS / "compute.nc"


def _path_of(name: str) -> Path:
    """Return the file of a model's computing times.

    Each shape of a model that no experiment lists has its own file.
    """
    entry = read_open_models().get(name)
    if entry is None:
        return compute_path()
    shape = entry.testbed_size(pipeline=False).model_dump_json()
    digest = hashlib.sha256(shape.encode()).hexdigest()[:8]
    return RESULTS / "adhoc" / f"compute-{name}-{digest}.nc"


def measure_missing(names: Sequence[str], corpus: Path, split: str) -> None:
    """Measure open models, which no experiment lists, unless this machine has measured them."""
    for name in names:
        if name in read_open_models() and not _is_measured(name):
            found = measure_compute([(False, name)], corpus, split)
            write_dataset(found, _path_of(name))


def _is_measured(name: str) -> bool:
    try:
        _read(name)
    except ReproError:
        return False
    return True


def measure_compute(trained: Sequence[tuple[bool, str]], corpus: Path, split: str) -> xr.Dataset:
    """Train models on one rank, with nothing to communicate.

    The rank has the largest CPU share of an emulated GPU in any experiment, and all other ranks use
    theirs. Computing time is inversely proportional to the share.

    Parameters
    ----------
    trained
        Models, and whether their shapes are those for pipelines.

    Returns
    -------
    Dataset
        `pass_time_s` (layout, model, micro_batch_size, iteration, phase) of the phases `COMPUTING`,
        and `peak_memory_bytes` (layout, model, micro_batch_size). Layout `data` is the testbed's
        data-parallel shape of a model, `pipeline` the one for pipelines, here in one piece. If the
        testbed cannot run, there are no variables, and attribute `not_run` has the reason.

    Raises
    ------
    ReproError
        A run failed.
    """
    ability = testbed_ability()
    if not ability.works:
        return not_run({"testbed": ability.found})
    ranks = min(map(most_gpus, {experiment(name).cluster for name in EXPERIMENTS}))
    cores = cores_per_rank(ranks)
    # After the warm-up, an emulated GPU takes equally long for every iteration.
    alone = Profile(models=(), gpus=(1,), warmup=1, iterations=1)
    cases = [
        (pipeline, name, micro_batch)
        for pipeline, name in trained
        for micro_batch in _MICRO_BATCHES
    ]
    runs = {
        (pipeline, name, micro_batch): testbed_run(
            name, alone, corpus, split, pipeline=pipeline, micro_batch_size=micro_batch
        )
        for pipeline, name, micro_batch in cases
    }
    inputs = {
        "computing": [asdict(run) for run in runs.values()],
        "corpus": [corpus_digest(corpus, family) for family in get_args(Family)],
        "emulated_gpu": emulated_gpu(cores),
        "rounds": _ROUNDS,
        "ranks": ranks,
    }

    def measure() -> xr.Dataset:
        return _measure(runs, PoolSpec(topology=None, ranks=ranks, cores=cores)).assign_attrs(
            title="Computing time of one emulated GPU",
            emulated_gpu=json.dumps(emulated_gpu(cores)),
            provenance=provenance({"rounds": _ROUNDS, "warmup": alone.warmup, "ranks": ranks}),
        )

    return results_store().find_or_run(inputs, "training", measure)


def _measure(runs: Mapping[tuple[bool, str, int], TrainingRun], pool: PoolSpec) -> xr.Dataset:
    times: dict[tuple[bool, str, int], list[tuple[float, ...]]] = {case: [] for case in runs}
    peaks: dict[tuple[bool, str, int], list[int]] = {case: [] for case in runs}
    with open_pool(pool) as ranks:

        def train(case: tuple[bool, str, int]) -> RankRecord:
            outcome = ranks.run(Request({}, runs[case], ranks=1))
            assert isinstance(outcome, Outcome)
            return outcome.records[0]

        # The first run of a process loads modules.
        train(next(iter(runs)))
        rounds = [case for _ in range(_ROUNDS) for case in runs]
        for case in tqdm(rounds, desc="compute on one rank", unit="run"):
            record = train(case)
            times[case] += zip(*(record.phase_time_s[name] for name in COMPUTING), strict=True)
            peaks[case].append(record.peak_memory_bytes)
    return _dataset(times, peaks)


def listed_models(profile_name: str) -> list[tuple[bool, str]]:
    """Return the models of all experiments, and whether they are trained in pipelines.

    Raises
    ------
    ReproError
        The profile is unknown.
    """
    return sorted(
        {
            (entry.pipeline, name)
            for entry in map(experiment, EXPERIMENTS)
            for name in choose("profile", profile_name, entry.profiles).models
        }
    )


def _dataset(
    times: dict[tuple[bool, str, int], list[tuple[float, ...]]],
    peaks: dict[tuple[bool, str, int], list[int]],
) -> xr.Dataset:
    layouts = list(dict.fromkeys(_LAYOUTS[pipeline] for pipeline, _, _ in times))
    models = list(dict.fromkeys(name for _, name, _ in times))
    iterations = len(next(iter(times.values())))
    shape = (len(layouts), len(models), len(_MICRO_BATCHES))
    seconds = np.full((*shape, iterations, len(COMPUTING)), np.nan)
    bytes_ = np.full(shape, np.nan)
    for pipeline, name, micro_batch in times:
        at = (
            layouts.index(_LAYOUTS[pipeline]),
            models.index(name),
            _MICRO_BATCHES.index(micro_batch),
        )
        seconds[at] = times[pipeline, name, micro_batch]
        bytes_[at] = min(peaks[pipeline, name, micro_batch])
    dims = ("layout", "model", "micro_batch_size")
    return xr.Dataset(
        {
            "pass_time_s": (
                (*dims, "iteration", "phase"),
                seconds,
                {"long_name": "time of a pass on one rank", "units": "s"},
            ),
            "peak_memory_bytes": (
                dims,
                bytes_,
                {"long_name": "memory that the run took", "units": "B"},
            ),
        },
        coords={
            "layout": layouts,
            "model": models,
            "micro_batch_size": list(_MICRO_BATCHES),
            "phase": list(COMPUTING),
        },
    )


@dataclass(frozen=True)
class Computing:
    """Measured time and memory of one rank for micro batches of one testbed model.

    `pass_times_s` has a row for each size and a column for each of `COMPUTING`.
    """

    micro_batch_sizes: tuple[int, ...]
    pass_times_s: tuple[tuple[float, ...], ...]
    memory_bytes: tuple[float, ...]

    def passes_s(self, micro_batch_size: int) -> tuple[float, ...]:
        """Return the median times of `COMPUTING`, measured or interpolated between sizes."""
        sizes, times_s = self.micro_batch_sizes, np.array(self.pass_times_s)
        last = len(sizes) - 1
        right = next((i for i in range(1, last) if sizes[i] >= micro_batch_size), last)
        left = right - 1
        share = (micro_batch_size - sizes[left]) / (sizes[right] - sizes[left])
        return tuple((times_s[left] + share * (times_s[right] - times_s[left])).tolist())

    def seconds(self, micro_batch_size: int, *, step: bool) -> float:
        """Return the time of a micro batch, with or without the optimizer's step."""
        return sum(self.passes_s(micro_batch_size)[: None if step else -1])

    @property
    def sequence_bytes(self) -> float:
        """Memory per additional sequence, between the two larger sizes."""
        sizes, taken = self.micro_batch_sizes, self.memory_bytes
        return (taken[-1] - taken[-2]) / (sizes[-1] - sizes[-2])

    @property
    def fixed_bytes(self) -> float:
        """Memory of a run that does not depend on its batch."""
        return self.memory_bytes[-1] - self.sequence_bytes * self.micro_batch_sizes[-1]


def computing_table() -> pd.DataFrame:
    """Return median computing times in seconds, by layout and model, a column per micro batch.

    Empty if they could not be measured.

    Raises
    ------
    ReproError
        They were never measured.
    """
    dataset = read_dataset(compute_path())
    if not dataset.data_vars:
        return pd.DataFrame()
    times = dataset["pass_time_s"].sum("phase", skipna=False).median("iteration").to_series()
    return pd.DataFrame(times.unstack("micro_batch_size")).dropna().round(4)


def read_computing(cluster_name: str, name: str, pipeline: bool) -> Computing:
    """Read the result of `measure_compute` for one model, for an emulated GPU of a cluster.

    Raises
    ------
    ReproError
        The result is missing, or belongs to another machine or another state of this one.
    NotRunHere
        The testbed cannot run here.
    """
    dataset = _read(name)
    layout = _LAYOUTS[pipeline]
    measured = layout in dataset["layout"].values and name in dataset["model"].values
    chosen = dataset.sel(layout=layout, model=name) if measured else None
    if chosen is None or bool(chosen["peak_memory_bytes"].isnull().any()):
        raise ReproError(
            f"{_path_of(name)}: no {layout}-parallel model {name!r}; fix: repro compute"
        )
    measured_cores = json.loads(dataset.attrs["emulated_gpu"])["cores"]
    factor = measured_cores / cores_per_rank(most_gpus(cluster_name))
    return Computing(
        tuple(chosen["micro_batch_size"].values.tolist()),
        tuple(map(tuple, (factor * chosen["pass_time_s"].median("iteration")).values.tolist())),
        tuple(chosen["peak_memory_bytes"].values.tolist()),
    )


def _read(name: str) -> xr.Dataset:
    """Read a model's computing times, if they are of this machine as it is now."""
    path = _path_of(name)
    dataset = read_dataset(path)
    if reason := why_not_run(dataset):
        raise NotRunHere(reason)
    if changed := differences(dataset, means_here()):
        raise ReproError(
            f"{path}: was measured with {changed}; computing times belong to one machine; "
            "fix: repro compute"
        )
    return dataset
