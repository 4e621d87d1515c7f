"""Measure how fast one emulated GPU computes, and what memory it takes: the testbed's side of the
similarity rule."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from repro.catalog.models.open_models import read_open_models
from repro.catalog.models.trainable import trainable
from repro.catalog.phases import COMPUTING
from repro.catalog.reading import choose
from repro.catalog.studies.experiments import EXPERIMENTS, Profile, experiment, most_gpus
from repro.errors import NotRunHere, ReproError
from repro.experiments.runs import testbed_run
from repro.experiments.this_machine import differences, emulated_gpu, means_here
from repro.launch.messages import Order, Site
from repro.launch.ranks.sites import open_site
from repro.observe.environment import provenance
from repro.paths import RESULTS
from repro.results.outcome import Outcome
from repro.results.store import not_run, read_dataset, why_not_run, write_dataset
from repro.testbed.ability import testbed_ability
from repro.testbed.speed import cores_per_rank
from repro.train.records import RankRecord

# Computing takes a fixed time and one for each sequence: three sizes show both, and others lie
# between them or on the line through the last two.
_MICRO_BATCHES = (1, 4, 16)
# Cases take turns, because a machine's speed drifts over seconds with what else runs on it.
_ROUNDS = 2
_LAYOUTS = {False: "data", True: "pipeline"}


def compute_path() -> Path:
    """Where the computing times of the experiments' models are kept."""
    return RESULTS / "compute.nc"


def _path_of(name: str) -> Path:
    """Where a model's are kept: one that no experiment lists has a file of its own, and another
    one with another shape."""
    entry = read_open_models().get(name)
    if entry is None:
        return compute_path()
    shape = entry.testbed_size(pipeline=False).model_dump_json()
    digest = hashlib.sha256(shape.encode()).hexdigest()[:8]
    return RESULTS / "adhoc" / f"compute-{name}-{digest}.nc"


def measure_missing(names: Sequence[str], corpus: Path, split: str) -> None:
    """Measure open models, which no experiment lists, unless that was done on this machine."""
    for name in names:
        if name in read_open_models() and not _is_known(name):
            found = measure_compute([(False, name)], corpus, split)
            write_dataset(found, _path_of(name))


def _is_known(name: str) -> bool:
    try:
        _read(name)
    except ReproError:
        return False
    return True


def measure_compute(trained: Sequence[tuple[bool, str]], corpus: Path, split: str) -> xr.Dataset:
    """Train models on one rank, with nothing to communicate.

    The rank has the share of an emulated GPU in the experiments with the largest share, and as many
    others use theirs. With another share, computing takes as much longer as that is smaller.

    Parameters
    ----------
    trained
        Models, and whether their shapes are those for pipelines.

    Returns
    -------
    Dataset
        `pass_time_s` (layout, model, micro_batch_size, iteration, phase) of the phases `COMPUTING`,
        and `peak_memory_bytes` (layout, model, micro_batch_size). Layout `data` is the testbed's
        data-parallel shape of a model, `pipeline` the one for pipelines, here in one piece.

        Without variables, and with the reason in attribute `not_run`, where the testbed cannot run,
        which is what they are for.

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
    # Once warm, an emulated GPU takes as long for every iteration.
    alone = Profile(models=(), gpus=(1,), warmup=1, iterations=1)
    cases = [
        (pipeline, name, micro_batch)
        for pipeline, name in trained
        for micro_batch in _MICRO_BATCHES
    ]
    times: dict[tuple[bool, str, int], list[tuple[float, ...]]] = {case: [] for case in cases}
    peaks: dict[tuple[bool, str, int], list[int]] = {case: [] for case in cases}
    with open_site(Site(topology=None, ranks=ranks, cores=cores)) as site:

        def train(case: tuple[bool, str, int]) -> RankRecord:
            pipeline, name, micro_batch = case
            run = testbed_run(
                name, alone, corpus, split, pipeline=pipeline, micro_batch_size=micro_batch
            )
            outcome = site.run(Order(run, ranks=1, rates_gbps={}))
            assert isinstance(outcome, Outcome)
            return outcome.records[0]

        # A process's first run loads what later ones find.
        train(cases[0])
        turns = [case for _ in range(_ROUNDS) for case in cases]
        for case in tqdm(turns, desc="compute on one rank", unit="run"):
            record = train(case)
            times[case] += zip(*(record.phase_time_s[name] for name in COMPUTING), strict=True)
            peaks[case].append(record.peak_memory_bytes)
    return _dataset(times, peaks).assign_attrs(
        title="Computing time of one emulated GPU",
        emulated_gpu=json.dumps(emulated_gpu(cores)),
        provenance=provenance(
            {
                "rounds": _ROUNDS,
                "warmup": alone.warmup,
                "ranks": ranks,
                "models": {name: trainable(name).model_dump() for _, name, _ in cases},
            }
        ),
    )


def listed_models(profile_name: str) -> list[tuple[bool, str]]:
    """Models of all experiments, and whether they are trained in pipelines.

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
    """What one rank was measured to need for micro batches of one testbed model.

    `pass_times_s` has a row for each size and a column for each of `COMPUTING`.
    """

    micro_batch_sizes: tuple[int, ...]
    pass_times_s: tuple[tuple[float, ...], ...]
    memory_bytes: tuple[float, ...]

    def passes_s(self, micro_batch_size: int) -> tuple[float, ...]:
        """Median times of each of `COMPUTING`: measured, or on the lines between or beyond two
        sizes."""
        sizes, times_s = self.micro_batch_sizes, np.array(self.pass_times_s)
        last = len(sizes) - 1
        right = next((i for i in range(1, last) if sizes[i] >= micro_batch_size), last)
        left = right - 1
        share = (micro_batch_size - sizes[left]) / (sizes[right] - sizes[left])
        return tuple((times_s[left] + share * (times_s[right] - times_s[left])).tolist())

    def seconds(self, micro_batch_size: int, *, step: bool) -> float:
        """What one rank computes of a micro batch, with or without the optimizer's step."""
        return sum(self.passes_s(micro_batch_size)[: None if step else -1])

    @property
    def sequence_bytes(self) -> float:
        """Memory that one more sequence takes, between the two larger sizes."""
        sizes, taken = self.micro_batch_sizes, self.memory_bytes
        return (taken[-1] - taken[-2]) / (sizes[-1] - sizes[-2])

    @property
    def fixed_bytes(self) -> float:
        """Memory that a run takes whatever its batch."""
        return self.memory_bytes[-1] - self.sequence_bytes * self.micro_batch_sizes[-1]


def computing_table() -> pd.DataFrame:
    """Median seconds of computing on one rank with the share that attribute `emulated_gpu` says, by
    layout and model, a column per micro batch.

    Empty where they could not be measured.

    Raises
    ------
    ReproError
        Nobody has tried.
    """
    dataset = read_dataset(compute_path())
    if not dataset.data_vars:
        return pd.DataFrame()
    times = dataset["pass_time_s"].sum("phase", skipna=False).median("iteration").to_series()
    return pd.DataFrame(times.unstack("micro_batch_size")).dropna().round(4)


def read_computing(cluster_name: str, name: str, pipeline: bool) -> Computing:
    """Read what `measure_compute` found for one model, for an emulated GPU of a cluster.

    Raises
    ------
    ReproError
        It was not measured, or not on this machine as it is now.
    NotRunHere
        It could not be, because the testbed cannot run here.
    """
    dataset = _read(name)
    layout = _LAYOUTS[pipeline]
    known = layout in dataset["layout"].values and name in dataset["model"].values
    chosen = dataset.sel(layout=layout, model=name) if known else None
    if chosen is None or bool(chosen["peak_memory_bytes"].isnull().any()):
        raise ReproError(
            f"{_path_of(name)}: no {layout}-parallel model {name!r}; measure it with "
            "`repro compute`"
        )
    measured_cores = json.loads(dataset.attrs["emulated_gpu"])["cores"]
    slower = measured_cores / cores_per_rank(most_gpus(cluster_name))
    return Computing(
        tuple(chosen["micro_batch_size"].values.tolist()),
        tuple(map(tuple, (slower * chosen["pass_time_s"].median("iteration")).values.tolist())),
        tuple(chosen["peak_memory_bytes"].values.tolist()),
    )


def _read(name: str) -> xr.Dataset:
    """What was measured of a model on this machine as it is now."""
    path = _path_of(name)
    dataset = read_dataset(path)
    if reason := why_not_run(dataset):
        raise NotRunHere(reason)
    if changed := differences(dataset, means_here()):
        raise ReproError(
            f"{path}: was measured with {changed}; computing times belong to a machine: measure "
            "them here with `repro compute`"
        )
    return dataset
