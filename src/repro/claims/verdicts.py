"""Compare every published claim with the results, and say what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from repro.catalog.experiments import experiment
from repro.catalog.protocols import read_protocols
from repro.claims.published import Claim, read_claims
from repro.claims.quantities import TESTS, Quantity, Statement
from repro.results.metrics import CONFIDENCE, Sample, draw_sample, estimate, support
from repro.results.store import why_not_run

Verdict = Literal["reproduced", "same direction", "not reproduced", "not run", "input"]

# A number counts as reproduced within this much of the published one, or if its interval holds it.
TOLERANCE = 0.10


@dataclass(frozen=True)
class Judgement:
    """A claim beside what each source has for it.

    Numbers are in the claim's `unit`. For an order or a trend, `published` is None and `testbed`
    the share of bootstrap resamples in which it holds. `interval` belongs to `testbed`. `reason`
    says why a claim was not run or is an input.
    """

    id: str
    statement: str
    source: str
    unit: str
    published: float | None
    predicted: float | None
    testbed: float | None
    cluster: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str = ""


def judge_claims(results: Mapping[str, xr.Dataset]) -> list[Judgement]:
    """Judge every claim that the given experiments test.

    Parameters
    ----------
    results : mapping
        Datasets of the schema by experiment name.

    Returns
    -------
    list of Judgement
        In the order of the claims' ids.
    """
    inputs = {
        claim: f"{entry.label}'s rate is computed from it"
        for entry in read_protocols().values()
        for claim in entry.input_claims
    }
    samples = {name: _sample(name, dataset) for name, dataset in results.items()}
    return [
        _judge(claim, TESTS[claim.id], samples[TESTS[claim.id].experiment], inputs.get(claim.id))
        for claim in read_claims()
        if claim.id in TESTS and TESTS[claim.id].experiment in samples
    ]


def _sample(name: str, dataset: xr.Dataset) -> Sample | str:
    """An experiment's results as its claims need them, or why they cannot answer."""
    return _why_not(name, dataset) or draw_sample(dataset.sel(source="testbed", drop=True))


def _judge(
    claim: Claim,
    test: Quantity | Statement,
    sample: Sample | str,
    input_reason: str | None,
) -> Judgement:
    if isinstance(sample, str):
        return _judgement(claim, None, None, "input" if input_reason else "not run", sample)
    if isinstance(test, Statement):
        share = support(sample, test.holds)
        verdict = _verdict_of_statement(share, bool(test.holds(sample.results)))
        return _judgement(claim, share, None, verdict, "")
    result = estimate(sample, test.compute)
    if np.isnan(result.value):
        return _judgement(claim, None, None, "not run", "configurations are missing")
    interval = (result.low, result.high)
    if input_reason:
        return _judgement(claim, result.value, interval, "input", input_reason)
    assert claim.value is not None
    verdict = _verdict_of_number(result.value, interval, claim.value, test.neutral)
    return _judgement(claim, result.value, interval, verdict, "")


def _why_not(name: str, dataset: xr.Dataset) -> str:
    """Why an experiment's results cannot answer its claims; empty if they can."""
    if reasons := why_not_run(dataset):
        return reasons
    full = experiment(name).profiles["default"]
    for dim, wanted in (
        ("model", full.models),
        ("gpus", full.gpus),
        ("protocol", tuple(read_protocols())),
    ):
        missing = [str(value) for value in wanted if value not in dataset[dim].values]
        if missing:
            return f"{name} was run without {dim} {', '.join(missing)}"
    return ""


def _verdict_of_statement(share: float, holds: bool) -> Verdict:
    if share >= CONFIDENCE:
        return "reproduced"
    return "same direction" if holds else "not reproduced"


def _verdict_of_number(
    value: float, interval: tuple[float, float], published: float, neutral: float | None
) -> Verdict:
    if interval[0] <= published <= interval[1] or abs(value / published - 1) <= TOLERANCE:
        return "reproduced"
    if neutral is not None and (value - neutral) * (published - neutral) > 0:
        return "same direction"
    return "not reproduced"


def _judgement(
    claim: Claim,
    testbed: float | None,
    interval: tuple[float, float] | None,
    verdict: Verdict,
    reason: str,
) -> Judgement:
    return Judgement(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        unit=claim.unit,
        published=claim.value,
        predicted=None,
        testbed=testbed,
        cluster=None,
        interval=interval,
        verdict=verdict,
        reason=reason,
    )
