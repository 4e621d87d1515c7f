"""What a source has for a claim."""

from dataclasses import dataclass
from typing import Literal

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
