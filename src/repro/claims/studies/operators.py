"""Other papers' errors of predicted iterations (C162-C164), compared with this package's.

They are yardsticks: an error that is as small or smaller reproduces them. The iterations are those
that `data/measured/` has of GPUs.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np
import pandas as pd

from repro.claims.findings import Finding, unanswered
from repro.claims.published import Claim
from repro.observe.precision import CONFIDENCE
from repro.predict.operators.trace_replay import geometric_mean_pct, iterations, model_kind
from repro.results.measured import NO_GPU, by_gpu, read_all_kept

_RESAMPLES = 1000
_SINGLE = (
    "it needs several GPUs: the DLRMs in data/measured/ ran on one GPU, where no table is sharded"
)


@cache
def _measured() -> pd.DataFrame | None:
    kept = read_all_kept("gpu_iterations")
    return by_gpu(kept, iterations) if kept else None


def error_finding(errors_pct: pd.Series, published: float) -> Finding:
    """Judge the geometric mean of errors; its interval is that of resampled iterations."""
    draw = np.random.default_rng(0)
    means = [
        geometric_mean_pct(errors_pct.sample(frac=1, replace=True, random_state=draw))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Finding(
        geometric_mean_pct(errors_pct),
        (float(low), float(high)),
        "reproduced" if low <= published else "not reproduced",
        f"{len(errors_pct)} measured iterations of single GPUs; the largest error is "
        f"{errors_pct.abs().max():.1f} %",
    )


def _error(kind: str, claim: Claim) -> Finding:
    """Geometric mean of the errors of predicted iterations on measured GPUs."""
    assert claim.value is not None
    found = _measured()
    if found is None:
        return unanswered(NO_GPU)
    return error_finding(found.error_pct[model_kind(found) == kind], claim.value)


def _fastest_sharding(claim: Claim) -> Finding:
    """Nothing: no sharded iteration was measured."""
    return Finding(None, None, "not reproduced", _SINGLE)


YARDSTICKS: Mapping[str, Callable[[Claim], Finding]] = {
    "C162": partial(_error, "dlrm"),
    "C163": partial(_error, "transformer"),
    "C164": _fastest_sharding,
}
