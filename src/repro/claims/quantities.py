"""Kinds of answers to claims, their table by claim, and reductions that tests of results share.

Modules of `repro.claims.experiments` and of studies have a table `ANSWERS` by the ids of claims;
documents repeat claims, so several ids may have one answer. No answer contains a published number;
formulas are rows of `data/published/claim_facts.csv`.
"""

import pkgutil
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import xarray as xr

from repro.claims.findings import SOURCES, Source
from repro.claims.published import Claim, claim_ids
from repro.results.metrics import iteration_time_s

Reduce = Callable[[xr.DataArray], xr.DataArray]
# Compute times that differ by less are flat (claim C080 gives no number).
FLAT = 0.10
PREDICTED: tuple[Source, ...] = ("predicted",)
MEASURED: tuple[Source, ...] = ("testbed", "cluster")


@dataclass(frozen=True)
class Answer:
    """How some sources answer a claim.

    `compute` gives the number, in the claim's unit; a subclass states its arguments and result.
    `experiment` names the experiment or study that the claim belongs to; it may be empty.
    """

    experiment: str
    compute: Callable[..., Any]
    sources: tuple[Source, ...] = PREDICTED


@dataclass(frozen=True)
class Quantity(Answer):
    """A number that is computed from an experiment's results.

    Examples
    --------
    >>> Quantity("weak_scaling", lambda results: 100 * mean(results["fraction"])).sources
    ('predicted', 'testbed', 'cluster')
    """

    sources: tuple[Source, ...] = SOURCES


@dataclass(frozen=True)
class Statement(Answer):
    """An order or a trend in an experiment's results: 1, 0, or NaN where results are missing.

    Examples
    --------
    >>> Statement("weak_scaling", lambda results: results["loss"].max() < 9).experiment
    'weak_scaling'
    """

    sources: tuple[Source, ...] = SOURCES


@dataclass(frozen=True)
class Prediction(Answer):
    """A number or a statement that is computed from the performance model's parameters.

    `cluster` names the machine whose calibration the parameters are drawn from.
    """

    cluster: str = "pinnacles"


@dataclass(frozen=True)
class Estimate(Answer):
    """An estimated number, and half of the 90 % interval of its logarithm."""


@dataclass(frozen=True)
class StudyTest(Answer):
    """A finding that is computed from a claim and the dataset of a study."""

    sources: tuple[Source, ...] = MEASURED


@dataclass(frozen=True)
class Comparison(Answer):
    """A finding that is computed from a claim and the measurements in `data/measured/`."""


Test = Quantity | Statement
Answers = Mapping[str, Answer | tuple[Answer, ...]]


@cache
def answers_by_claim() -> Mapping[str, Mapping[Source, Answer]]:
    """Return how each source answers each claim, from the tables `ANSWERS` of all modules.

    They are the modules of `repro.claims.experiments`, and `claims` of every study.

    Raises
    ------
    ValueError
        Two answers of one source to a claim.

    Examples
    --------
    >>> answers_by_claim()["C017"]["testbed"].experiment
    'weak_scaling'
    """
    found: dict[str, dict[Source, Answer]] = {}
    for name in _modules():
        table: Answers = getattr(import_module(name), "ANSWERS", {})
        for ids, answers in table.items():
            for answer in answers if isinstance(answers, tuple) else (answers,):
                for claim in claim_ids(ids):
                    own = found.setdefault(claim, {})
                    if not own.keys().isdisjoint(answer.sources):
                        raise ValueError(f"{claim}: two answers, one in {name}")
                    own.update(dict.fromkeys(answer.sources, answer))
    return found


def _modules() -> Iterator[str]:
    experiments = import_module("repro.claims.experiments")
    for module in pkgutil.iter_modules(experiments.__path__, f"{experiments.__name__}."):
        yield module.name
    yield from import_module("repro.studies").study_modules("claims").values()


@cache
def experiment_tests() -> Mapping[str, Test]:
    """Return the test of each claim that an experiment answers."""
    measured = {claim: own.get("testbed") for claim, own in answers_by_claim().items()}
    return {claim: test for claim, test in measured.items() if isinstance(test, Test)}


def answered_by(claim: Claim, names: Container[str]) -> bool:
    """Return whether a claim belongs to one of the named experiments and studies."""
    own = answers_by_claim().get(claim.id, {})
    return any(answer.experiment in names for answer in own.values() if answer.experiment)


def mean(values: xr.DataArray) -> xr.DataArray:
    """Compute the mean of each resample; NaN where a value is missing.

    Examples
    --------
    >>> float(mean(xr.DataArray([1.0, 3.0], dims="model")))
    2.0
    """
    return values.mean(_all_but_resample(values), skipna=False)


def largest(values: xr.DataArray) -> xr.DataArray:
    """Compute the largest value of each resample; NaN where a value is missing."""
    return values.max(_all_but_resample(values), skipna=False)


def smallest(values: xr.DataArray) -> xr.DataArray:
    """Compute the smallest value of each resample, without missing values."""
    return values.min(_all_but_resample(values))


def above_zero(margins: xr.DataArray) -> xr.DataArray:
    """Compute 1 for resamples whose margins are all above zero, else 0; NaN if one is missing."""
    least = margins.min(_all_but_resample(margins), skipna=False)
    return (least > 0).where(least.notnull())


def falls(values: xr.DataArray, dim: str, order: tuple[object, ...]) -> xr.DataArray:
    """Test whether each value along `dim`, taken in `order`, is less than the one before.

    Examples
    --------
    >>> times = xr.DataArray([1.0, 2.0], {"gpus": [8, 4]})
    >>> bool(falls(times, "gpus", (4, 8)))
    True
    """
    ordered = values.sel({dim: list(order)})
    return above_zero(-ordered.diff(dim))


def is_highest(values: xr.DataArray, model: str) -> xr.DataArray:
    """Test whether a model's value is above that of each other model."""
    return above_zero(values.sel(model=model, drop=True) - values.drop_sel(model=model))


def times_ordered(results: xr.Dataset) -> xr.DataArray:
    """Test whether iterations on 8 GPUs are longest over TCP and shortest over RDMA."""
    time = iteration_time_s(results).sel(gpus=8).mean("model", skipna=False)
    return falls(time, "protocol", ("tcp", "ipoib", "rdma"))


def _all_but_resample(values: xr.DataArray) -> list[Hashable]:
    return [dim for dim in values.dims if dim != "resample"]
