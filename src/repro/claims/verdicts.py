"""Verdicts on published claims by predictions and measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import xarray as xr

from repro.catalog.studies.experiments import experiment
from repro.catalog.studies.selection import select
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import read_protocols
from repro.claims.findings import (
    SOURCES,
    Finding,
    Judgement,
    Source,
    Verdict,
    judgement,
    unanswered,
)
from repro.claims.published import Claim, read_claims
from repro.claims.quantities import (
    Comparison,
    Estimate,
    Prediction,
    Quantity,
    Statement,
    StudyTest,
    Test,
    answered_by,
    answers_by_claim,
)
from repro.observe.precision import CONFIDENCE
from repro.predict.calibration.interval import DEVIATIONS, draw_parameters
from repro.predict.explore.experiments.predicted import draw_experiment, predict_experiment
from repro.predict.parameters import calibration
from repro.predict.workload import Array
from repro.results.metrics import Sample, draw_sample, estimate, support
from repro.results.store import why_not_run

# A number is reproduced within this fraction of the published one, or if its interval contains it.
TOLERANCE = 0.10
# Draws from the interval of an `Estimate`.
_DRAWS = 300
_UNPREDICTED = unanswered("the model says nothing about it")
_UNTESTED = unanswered("no experiment answers it")
# Facts that are verdicts by themselves.
_GIVEN: tuple[Verdict, ...] = ("not run", "not reproduced")


def judge_claims(results: Mapping[str, xr.Dataset]) -> list[Judgement]:
    """Judge the claims that the given experiments and studies answer.

    Parameters
    ----------
    results : mapping
        Datasets of the schema by the name of the experiment or study.

    Returns
    -------
    list of Judgement
        In the order of the claims' ids.

    Examples
    --------
    >>> from repro.results.store import not_run
    >>> judgement = judge_claims({"cluster_b": not_run({"testbed": "no root"})})[0]
    >>> judgement.findings["testbed"].reason
    'testbed: no root'
    """
    return judge([claim for claim in read_claims() if answered_by(claim, results)], results)


def judge(claims: Sequence[Claim], results: Mapping[str, xr.Dataset]) -> list[Judgement]:
    """Judge claims in their order, with results as in `judge_claims`."""
    evidence = _Evidence(results)
    return [
        judgement(claim, {source: evidence.find(claim, source) for source in SOURCES})
        for claim in claims
    ]


class _Evidence:
    """Predictions and measured results, each drawn once for all claims."""

    def __init__(self, results: Mapping[str, xr.Dataset]) -> None:
        self._results = results
        self._sample = cache(self._draw_sample)
        self._evaluate = cache(evaluate)
        self._link_rates = {
            claim: f"{entry.label}'s rate is computed from it"
            for entry in read_protocols().values()
            for claim in entry.input_claims
        }

    def find(self, claim: Claim, source: Source) -> Finding:
        """Judge a claim on one source."""
        for verdict in _GIVEN:
            if reason := claim.fact(verdict, source):
                return Finding(None, None, verdict, reason)
        answer = answers_by_claim().get(claim.id, {}).get(source)
        reason, assumption = self._input(claim, source), claim.fact("assumption", source)
        if isinstance(answer, Quantity | Statement):
            sample = self._sample(answer.experiment, source)
            return _judge_sample(claim, answer, sample, reason, assumption)
        if isinstance(answer, Prediction | Estimate):
            return _judge_draws(claim, *self._evaluate(answer), assumption)
        if isinstance(answer, StudyTest):
            return self._judge_study(claim, answer, source)
        if isinstance(answer, Comparison):
            found: Finding = answer.compute(claim)
            return found
        if reason:
            return Finding(None, None, "input", reason)
        return _UNPREDICTED if source == "predicted" else _UNTESTED

    def _input(self, claim: Claim, source: Source) -> str:
        """Return why a claim is an input of a source; nothing is an input of real nodes."""
        rate = "" if source == "cluster" else self._link_rates.get(claim.id, "")
        return rate or claim.fact("input", source)

    def _draw_sample(self, name: str, source: Source) -> Sample | str:
        """Draw resamples of an experiment, or return why its results cannot answer claims."""
        if source == "predicted":
            return predicted_sample(name)
        if name not in self._results:
            return f"{name} was not run"
        dataset = self._results[name]
        if reason := missing(name, dataset, source):
            return reason
        # Open models may have been run in addition to the papers', and are in no claim.
        models = list(experiment(name).profiles["default"].models)
        return draw_sample(dataset.sel(source=source, drop=True).sel(model=models))

    def _judge_study(self, claim: Claim, test: StudyTest, source: Source) -> Finding:
        name, dataset = test.experiment, self._results.get(test.experiment)
        if dataset is None or not dataset.data_vars:
            why = "" if dataset is None else why_not_run(dataset)
            return unanswered(why or f"{name} was not run")
        # A study of one machine alone has no such dimension.
        has_sources = "source" in dataset.dims
        if source not in (dataset["source"].values if has_sources else ["testbed"]):
            return unanswered(f"{name} was not run on source {source}")
        own = dataset.sel(source=[source]) if has_sources else dataset
        found: Finding = test.compute(claim, own)
        return found


def predicted_sample(name: str) -> Sample:
    """Predict an experiment, with draws of the model's uncertain parameters."""
    # Some experiments are predicted for more than can be measured.
    profile = "predicted" if "predicted" in experiment(name).profiles else "default"
    selection = select(name, source="predicted", profile=profile)
    point, draws = predict_experiment(selection), draw_experiment(selection)
    return Sample(point.squeeze("source", drop=True), draws.squeeze("source", drop=True))


def evaluate(answer: Prediction | Estimate) -> tuple[float, Array]:
    """Compute a prediction's value, and a value for each draw of its uncertainty."""
    if isinstance(answer, Estimate):
        value, half_width = answer.compute()
        normal = np.random.default_rng(0).standard_normal(_DRAWS)
        return value, value * np.exp(half_width / DEVIATIONS * normal)
    entry = cluster(answer.cluster)
    fitted = calibration(entry.calibration)
    point = float(np.squeeze(answer.compute(fitted.parameters)))
    return point, np.ravel(answer.compute(draw_parameters(fitted, entry)))


def missing(name: str, dataset: xr.Dataset, source: str) -> str:
    """Return which part of an experiment its claims need and a source lacks; empty if none."""
    if reasons := why_not_run(dataset):
        return reasons
    if source not in dataset["source"].values:
        return f"{name} was not run on source {source}"
    entry = experiment(name)
    full = entry.profiles["default"]
    for dim, needed in (
        ("model", full.models),
        ("gpus", full.gpus),
        ("protocol", entry.protocols),
        *([(entry.sweep, full.values)] if entry.sweep else []),
    ):
        absent = [str(value) for value in needed if value not in dataset[dim].values]
        if absent:
            return f"{name} was run without {dim} {', '.join(absent)}"
    return ""


def judge_point(claim: Claim, test: Test, results: xr.Dataset) -> Finding:
    """Judge a claim on results alone, without an interval.

    The value of a statement is 1 if it holds, else 0, also where results are missing.
    """
    if isinstance(test, Statement):
        holds = float(test.compute(results)) == 1.0
        return _judge_statement(float(holds), holds)
    value = float(test.compute(results))
    return _judge_number(claim, value, (value, value))


def _judge_sample(
    claim: Claim, test: Test, sample: Sample | str, input_reason: str, assumption: str
) -> Finding:
    if isinstance(sample, str):
        return Finding(None, None, "input" if input_reason else "not run", sample)
    if isinstance(test, Statement):
        value = float(test.compute(sample.results))
        found = _judge_statement(support(sample, test.compute), bool(value))
    else:
        result = estimate(sample, test.compute)
        value = result.value
        found = _judge_number(claim, value, (result.low, result.high))
    if np.isnan(value):
        return unanswered("configurations are missing")
    if input_reason:
        return replace(found, verdict="input", reason=input_reason)
    return replace(found, reason=assumption)


def _judge_draws(claim: Claim, value: float, draws: Array, assumption: str) -> Finding:
    if claim.value is None:
        found = _judge_statement(float(np.mean(draws)), bool(value))
    else:
        low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        found = _judge_number(claim, value, (float(low), float(high)))
    return replace(found, reason=assumption)


def _judge_statement(fraction: float, holds: bool) -> Finding:
    if fraction >= CONFIDENCE:
        return Finding(fraction, None, "reproduced")
    return Finding(fraction, None, "same direction" if holds else "not reproduced")


def _judge_number(claim: Claim, value: float, interval: tuple[float, float]) -> Finding:
    published = claim.value
    assert published is not None
    if claim.comparator == "ge":
        holds = value >= published or interval[1] >= published
        return Finding(value, interval, "reproduced" if holds else "not reproduced")
    if interval[0] <= published <= interval[1] or abs(value / published - 1) <= TOLERANCE:
        return Finding(value, interval, "reproduced")
    if claim.neutral is not None and (value - claim.neutral) * (published - claim.neutral) > 0:
        return Finding(value, interval, "same direction")
    return Finding(value, interval, "not reproduced")
