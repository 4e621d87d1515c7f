"""Robust fits of parameters to measurements, their cross-validation and their YAML text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel
from scipy.optimize import OptimizeResult, least_squares
from scipy.special import stdtrit
from tqdm import tqdm

from repro.atomic import replace_text
from repro.predict.calibration.interval import DEVIATIONS, LEVEL
from repro.predict.parameters import Prior, Residuals
from repro.predict.workload import Array

Loss = Literal["soft_l1", "cauchy"]
# Square roots of robust losses, of an error in units of its scale.
_ROOT_LOSSES: Mapping[str, Callable[[Array], Array]] = {
    "soft_l1": lambda errors: np.sqrt(2 * (np.sqrt(1 + errors**2) - 1)),
    "cauchy": lambda errors: np.sqrt(np.log1p(errors**2)),
}


@dataclass(frozen=True)
class MostProbable:
    """Fitted values by name, and the covariance of their logarithms."""

    values: dict[str, float]
    covariance: Array


def most_probable(
    log_errors: Callable[[dict[str, float]], Array],
    priors: Mapping[str, Prior],
    weights: Array | float = 1.0,
    *,
    loss: Loss = "soft_l1",
    scale: float = 0.05,
    loss_of_priors: bool = False,
    diff_step: float | None = None,
) -> MostProbable:
    """Fit parameters by least squares over their logarithms.

    Parameters
    ----------
    log_errors
        Function from values by name to ln(predicted / measured) of every row.
    priors
        Prior of each fitted parameter. The fit starts from the medians; with Cauchy's loss, which
        has several minima, also from the fit with soft L1, and the better result counts.
    weights
        Weight of each row's squared error.
    loss
        Robust loss of errors: soft L1 grows linearly, Cauchy's loss logarithmically.
    scale
        Logarithmic error beyond which a row counts less.
    loss_of_priors
        Whether the loss also applies to deviations from priors; False: they count squared.
    diff_step
        Relative step of numerical derivatives. None: scipy's, which suits smooth models.
    """
    medians = np.log([prior.median for prior in priors.values()])
    deviations = np.array([prior.deviation for prior in priors.values()])

    def named(logarithms: Array) -> dict[str, float]:
        return dict(zip(priors, np.exp(logarithms).tolist(), strict=True))

    def solve(start: Array, loss: Loss) -> OptimizeResult:
        def residuals(logarithms: Array) -> Array:
            errors = log_errors(named(logarithms)) / scale
            if not loss_of_priors:
                errors = np.sign(errors) * _ROOT_LOSSES[loss](errors)
            return np.concatenate([np.sqrt(weights) * errors, (logarithms - medians) / deviations])

        # The loss of least_squares applies to all residuals.
        overall = loss if loss_of_priors else "linear"
        return least_squares(
            residuals, start, x_scale=deviations, loss=overall, diff_step=diff_step
        )

    starts = [medians, solve(medians, "soft_l1").x] if loss == "cauchy" else [medians]
    found = min((solve(start, loss) for start in starts), key=lambda result: float(result.cost))
    return MostProbable(named(found.x), np.linalg.inv(found.jac.T @ found.jac))


def group_weights(groups: pd.Series, copies: Array | float = 1.0) -> Array:
    """Return row weights by which a group counts as the square root of its number of rows.

    The `copies` of one configuration, given per row, weigh as one. Rows of a single group without
    copies weigh 1 each.
    """
    distinct = 1 / pd.Series(np.broadcast_to(copies, len(groups)), index=groups.index)
    size = distinct.groupby(groups).transform("sum")
    weights: Array = (distinct * (distinct.sum() / size) ** 0.5).to_numpy(dtype=float)
    return weights


def held_out(
    groups: pd.Series, errors_of_fit: Callable[[Array, Array], Array | float]
) -> pd.Series:
    """Return ln(predicted / measured) of each row by a fit to the rows of other groups.

    `errors_of_fit` takes two masks over the rows. It fits to the rows of the first, and returns the
    errors of the rows of the second. Rows without a group (NaN) are in every fit. Their errors are
    NaN, as are those of a single group.
    """
    errors = pd.Series(np.nan, index=groups.index)
    names = groups.dropna().unique()
    # Only a cross-validation of more than two seconds shows a progress bar.
    for name in tqdm(names, desc=f"cross-validation by {groups.name}", unit="group", delay=2):
        held = (groups == name).to_numpy()
        if not held.all():
            errors[held] = errors_of_fit(~held, held)
    return errors


def residuals_of(
    errors: Array, weights: Array | None = None, groups: int | None = None
) -> Residuals:
    """Summarize ln(predicted / measured) of held-out rows.

    Where the rows of each of a few `groups` share one error, Student's t widens the half width to
    that of the next group.
    """
    widened = 1.0 if groups is None else stdtrit(groups - 1, (1 + LEVEL) / 2) / DEVIATIONS
    size = np.abs(errors)
    if weights is None:
        quantile = np.quantile(size, LEVEL)
    else:
        quantile = np.quantile(size, LEVEL, weights=weights, method="inverted_cdf")
    return Residuals(
        rows=len(errors),
        mape_pct=float(100 * np.average(np.abs(np.expm1(errors)), weights=weights)),
        half_width=float(widened * quantile),
    )


def write_fit(found: Any, module: str, path: Path) -> None:
    """Write fitted values, which a module describes, as YAML with numbers of four digits."""
    text = yaml.dump(
        _rounded(found), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=10**6
    )
    replace_text(path, f"# Written by `repro calibrate`; values are described in {module}.\n{text}")


class _Dumper(yaml.SafeDumper):
    """Dumper of one line per list or short mapping of plain values."""

    def represent_mapping(
        self, tag: str, mapping: Any, flow_style: bool | None = None
    ) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, None if len(mapping) <= 8 else False)


def _rounded(value: Any) -> Any:
    """Return plain lists and mappings with numbers of four digits."""
    if isinstance(value, BaseModel):
        return _rounded(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
