"""Other papers' errors of predicted iterations (C162-C164), beside this machine's.

They are yardsticks: an error as small or smaller, and a share as large or larger, reproduce them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

from repro.claims.findings import Finding, Verdict
from repro.claims.published import Claim
from repro.observe.precision import CONFIDENCE, NORMAL_QUANTILE
from repro.predict.operators.trace_replay import geometric_mean_pct, iterations, plans

_RESAMPLES = 1000
_TABLES = "dlrm"


@dataclass(frozen=True)
class Yardstick:
    """A value in percent, its interval and what it is of; `least` is whether less is better."""

    value: float
    interval: tuple[float, float]
    said: str
    least: bool

    def reaches(self, published: float) -> bool:
        """Whether it is as good as what was published, or its interval holds that."""
        low, high = self.interval
        return low <= published if self.least else high >= published


def _error(sharded: bool, results: xr.Dataset) -> Yardstick:
    """Geometric mean of the errors, with the interval of other cases drawn from these."""
    found = iterations(results)
    own = found[(found.model == _TABLES) == sharded].error_pct
    draw = np.random.default_rng(0)
    means = [
        geometric_mean_pct(own.sample(frac=1, replace=True, random_state=draw))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    said = f"{len(own)} iterations on this machine's CPU; the largest error is "
    return Yardstick(
        geometric_mean_pct(own), (float(low), float(high)), f"{said}{own.abs().max():.1f} %", True
    )


def _fastest_found(results: xr.Dataset) -> Yardstick:
    """How often the plan predicted to be fastest was; the interval of a share by Wilson (1927)."""
    chosen = plans(results)
    right, tried, z = int(chosen.found.sum()), len(chosen), NORMAL_QUANTILE
    middle = (right + z**2 / 2) / (tried + z**2)
    half = z / (tried + z**2) * math.sqrt(right * (tried - right) / tried + z**2 / 4)
    said = (
        f"{right} of {tried} sets of tables; in {tried - int(chosen.told_apart.sum())} no plan is "
        "known to be faster than the chosen one, which is at most "
        f"{chosen.lost_pct.max():.1f} % slower than the fastest"
    )
    interval = 100 * (middle - half), 100 * (middle + half)
    return Yardstick(100 * right / tried, interval, said, False)


_YARDSTICKS: Mapping[str, Callable[[xr.Dataset], Yardstick]] = {
    "C162": partial(_error, True),
    "C163": partial(_error, False),
    "C164": _fastest_found,
}


def yardstick(claim: str, results: xr.Dataset) -> Yardstick:
    """What this machine's measurements have for a claim of `OPERATORS`."""
    return _YARDSTICKS[claim](results)


def _compared(claim: Claim, results: xr.Dataset) -> Finding:
    """How iterations that were timed again from operators compare with a paper's."""
    found = yardstick(claim.id, results)
    assert claim.value is not None
    verdict: Verdict = "reproduced" if found.reaches(claim.value) else "not reproduced"
    return Finding(found.value, found.interval, verdict, found.said)


OPERATORS = dict.fromkeys(_YARDSTICKS, _compared)
