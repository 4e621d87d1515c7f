"""Findings of one source on a claim, and judgements that join the findings of all sources."""

from dataclasses import dataclass
from typing import Literal

from repro.claims.published import Claim

Verdict = Literal["reproduced", "same direction", "not reproduced", "not run", "input"]


@dataclass(frozen=True)
class Finding:
    """What one source has for a claim.

    `value` is in the claim's unit; for an order or a trend, it is the share of resamples (of the
    testbed's iterations, of the model's uncertain parameters) in which it holds. `reason` says why
    a claim was not run or is an input, or what it was judged on.
    """

    value: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str = ""


def unanswered(reason: str) -> Finding:
    """Nothing, and why."""
    return Finding(None, None, "not run", reason)


@dataclass(frozen=True)
class Judgement:
    """A claim beside what each source has for it; numbers are in the claim's `unit`.

    `interval`, `verdict` and `reason` belong to `testbed`; what begins with `cluster` to real
    nodes, where nothing is an input. For an order or a trend `published` is None. `note` is what
    reading the document closely says about the claim: contradictions, what it leaves open.
    """

    id: str
    statement: str
    source: str
    section: str
    unit: str
    published: float | None
    predicted: float | None
    predicted_interval: tuple[float, float] | None
    predicted_verdict: Verdict
    predicted_reason: str
    testbed: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str
    cluster: float | None
    cluster_interval: tuple[float, float] | None
    cluster_verdict: Verdict
    cluster_reason: str
    note: str


def judgement(claim: Claim, predicted: Finding, testbed: Finding, cluster: Finding) -> Judgement:
    """Join a claim with what each source found."""
    return Judgement(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        section=claim.section,
        unit=claim.unit,
        published=claim.value,
        predicted=predicted.value,
        predicted_interval=predicted.interval,
        predicted_verdict=predicted.verdict,
        predicted_reason=predicted.reason,
        testbed=testbed.value,
        interval=testbed.interval,
        verdict=testbed.verdict,
        reason=testbed.reason,
        cluster=cluster.value,
        cluster_interval=cluster.interval,
        cluster_verdict=cluster.verdict,
        cluster_reason=cluster.reason,
        note=claim.note,
    )
