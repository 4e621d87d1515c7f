"""What of the papers' data-parallel claims one small model of cluster A explains, in the open.

Five numbers are fitted to ten headline claims: the three protocols' rates, one factor on all
computing and one on what small batches cost the host. Then each claim is predicted from a fit to
the other nine, so that a reader sees which claims are explained and which are only fitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import least_squares
from tqdm import tqdm

from repro.catalog.studies.selection import select
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import Protocol, read_protocols
from repro.claims.experiments.definitions import Quantity
from repro.claims.experiments.quantities import TESTS
from repro.claims.published import Claim, read_claims
from repro.predict.calibration.interval import slower
from repro.predict.explore.experiments.predicted import predict_with
from repro.predict.parameters import calibration
from repro.predict.workload import Array
from repro.progress import clear_progress

HEADLINES = ("C001", "C002", "C003", "C004", "C005", "C017", "C018", "C072", "C073", "C061")
# Published numbers are rounded, and averages of four models whose sequence lengths are unknown.
_RELATIVE_ERROR = 0.05
# Rates are free; computing and the host are known to within these factors (one deviation).
_FACTOR_DEVIATIONS = np.array([0.2, 0.4])
# No protocol carries more payload than its port: EDR InfiniBand twice, and 10 GbE's framing.
_PORT_GBPS = (100.0, 100.0, 9.41)
_TOLERANCE = 1e-3
# Of the numbers' logarithms, for slopes.
_STEP = 1e-5


@dataclass(frozen=True)
class Fitted:
    """The five numbers: Gbit/s of a NIC by protocol, and factors on computing and host times."""

    rdma_gbps: float
    ipoib_gbps: float
    tcp_gbps: float
    compute_factor: float
    host_factor: float


@dataclass(frozen=True)
class Explained:
    """A claim, its value in the fit to all, and in a fit that has not seen it.

    `deviations` is how far the latter is from the published value, in units of the assumed error.
    """

    id: str
    statement: str
    unit: str
    published: float
    fitted: float
    left_out: float
    deviations: float


def explain() -> tuple[Fitted, list[Explained]]:
    """Fit the headline claims, and each of them from the others."""
    claims = {claim.id: claim for claim in read_claims() if claim.id in HEADLINES}
    start = [entry.effective_gbps for entry in read_protocols().values()] + [1.0, 1.0]
    all_fitted = _fit(HEADLINES, claims, np.log(start))
    values = np.exp(_values_around(tuple(all_fitted))[0])
    explained = []
    for index, left in enumerate(tqdm(HEADLINES, desc="leave one out", unit="claim")):
        others = [claim for claim in HEADLINES if claim != left]
        unseen = _fit(others, claims, all_fitted)
        alone = float(np.exp(_values_around(tuple(unseen))[0, index]))
        published = _published(claims[left])
        explained.append(
            Explained(
                id=left,
                statement=claims[left].statement,
                unit=claims[left].unit,
                published=published,
                fitted=float(values[index]),
                left_out=alone,
                deviations=float(np.log(alone / published) / _RELATIVE_ERROR),
            )
        )
    clear_progress()
    return Fitted(*np.exp(all_fitted).tolist()), explained


def _published(claim: Claim) -> float:
    assert claim.value is not None
    return claim.value


def _fit(wanted: Sequence[str], claims: dict[str, Claim], start: Array) -> Array:
    """The logarithms of the five numbers that suit the wanted claims best."""
    published = np.log([_published(claims[claim]) for claim in wanted])
    at = [HEADLINES.index(claim) for claim in wanted]

    def residuals(logarithms: Array) -> Array:
        errors = (_values_around(tuple(logarithms))[0, at] - published) / _RELATIVE_ERROR
        return np.concatenate([errors, logarithms[-2:] / _FACTOR_DEVIATIONS])

    def slopes(logarithms: Array) -> Array:
        values = _values_around(tuple(logarithms))[:, at]
        errors = (values[1:] - values[0]).T / _STEP / _RELATIVE_ERROR
        factors = np.eye(len(logarithms))[-2:] / _FACTOR_DEVIATIONS[:, None]
        return np.concatenate([errors, factors])

    limits = np.log([*_PORT_GBPS, np.inf, np.inf])
    first = np.minimum(start, limits - 1e-6)
    solution = least_squares(
        residuals, first, jac=slopes, bounds=(-np.inf, limits), xtol=_TOLERANCE
    )
    best: Array = solution.x
    return best


@cache
def _values_around(logarithms: tuple[float, ...]) -> Array:
    """Logarithms of the headline claims' quantities (point, claim) for five numbers, given as
    logarithms too, and for those with one a step larger; every fit to nine begins at the same."""
    steps = np.insert(_STEP * np.eye(len(logarithms)), 0, 0.0, axis=0)
    points = np.exp(np.array(logarithms) + steps)
    *rates, compute_factor, host_factor = np.hsplit(points, len(logarithms))
    protocols: dict[str, Protocol] = {
        name: entry.model_copy(update={"effective_gbps": rate})
        for (name, entry), rate in zip(read_protocols().items(), rates, strict=True)
    }
    predicted = {}
    for name in {_quantity(claim).experiment for claim in HEADLINES}:
        selection = select(name, source="predicted")
        fitted = calibration(cluster(selection.experiment.cluster).calibration).parameters
        changed = slower(fitted, compute_factor, host_factor)
        predicted[name] = predict_with(selection, protocols, changed)
    quantities = [_quantity(claim) for claim in HEADLINES]
    return np.log([q.compute(predicted[q.experiment]) for q in quantities]).T


def _quantity(claim: str) -> Quantity:
    test = TESTS[claim]
    assert isinstance(test, Quantity)
    return test
