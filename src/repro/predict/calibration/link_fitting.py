"""Calibrate the networks that collectives were measured on, and say how far off each is."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares, nnls

from repro.atomic import replace_text
from repro.errors import ReproError
from repro.predict.calibration.interval import LEVEL
from repro.predict.calibration.robust import soft_l1
from repro.predict.network.links import (
    MOSTLY_STARTUP,
    MOSTLY_TRANSFER,
    NEW_NETWORK,
    NEW_RANKS,
    BusBandwidth,
    Costs,
    LinkCalibration,
    NetworkCalibration,
    collective_arrays,
    cost_priors,
    peak_prior,
    prior_fit,
    regime_times,
)
from repro.predict.parameters import Prior, Residuals
from repro.predict.workload import Array

# Soft L1 as in `repro.predict.calibration.robust` does not do here: its pull never fades, and logs
# have rows that are off by a factor of 3 to 200 (70 ms for 2 MiB on MI250X), which no smooth model
# explains.
# Cauchy's loss lets go of them; _SCALE is the error from which on it does.
_SCALE = 0.05
# Fewer held-out rows than this do not show a 90 % quantile.
_FEW = 8

_ANY_GBPS = Prior(50.0, 1.5)


def _fit(rows: pd.DataFrame) -> NetworkCalibration:
    """The most probable costs and peaks of one network, by least squares over logarithms."""
    gpu, network = str(rows.gpu.iloc[0]), str(rows.network.iloc[0])
    chosen, measured = collective_arrays(rows), rows.time_us.to_numpy(dtype=float) * 1e-6
    costs = cost_priors(int(rows.nodes.max()))
    peaks = [peak_prior(gpu, network, nodes) or _ANY_GBPS for _, nodes in chosen.pairs]
    priors = [*costs.values(), *peaks]
    medians = np.log([prior.median for prior in priors])
    deviations = np.array([prior.deviation for prior in priors])

    def read(logarithms: Array) -> tuple[Costs, Array]:
        values = np.exp(logarithms)
        return Costs(**dict(zip(costs, values.tolist(), strict=False))), values[len(costs) :]

    def residuals(logarithms: Array, robust: Callable[[Array], Array]) -> Array:
        fitted, rates = read(logarithms)
        transfer_s = chosen.link_bytes / (1e9 * rates[chosen.which])
        times = regime_times(chosen.link_bytes, chosen.steps, transfer_s, fitted)
        errors = np.log(times.time_s / measured) / _SCALE
        return np.concatenate(
            [np.sign(errors) * robust(errors), (logarithms - medians) / deviations]
        )

    # Cauchy's loss has several minima: start from the priors, and from where soft L1 ends.
    soft = least_squares(residuals, medians, x_scale=deviations, args=(soft_l1,)).x
    found = min(
        (
            least_squares(residuals, start, x_scale=deviations, args=(_cauchy,))
            for start in (medians, soft)
        ),
        key=lambda result: float(result.cost),
    )
    best, rates = read(found.x)
    return NetworkCalibration(
        gpu=gpu,
        network=network,
        rows=len(rows),
        costs=best,
        peaks=tuple(
            BusBandwidth(ranks=ranks, nodes=nodes, busbw_GBps=peak)
            for (ranks, nodes), peak in zip(chosen.pairs, rates.tolist(), strict=True)
        ),
        residuals={},
    )


def _cauchy(errors: Array) -> Array:
    root: Array = np.sqrt(np.log1p(errors**2))
    return root


def calibrate_links(rows: pd.DataFrame, source: str) -> LinkCalibration:
    """Fit every network of measured collectives, and cross-validate.

    Parameters
    ----------
    rows : DataFrame
        As `repro.predict.calibration.rows.read_rows` reads them: gpu, ranks, nodes, network,
        collective, size_bytes, time_us.
    source : str
        Where they come from.

    Raises
    ------
    ReproError
        A collective is unknown, or a number is missing; the message names the row.
    """
    groups = [group for _, group in rows.groupby(["gpu", "network"], sort=False)]
    fits = [_fit(group) for group in groups]
    errors = [_errors(group, fit) for group, fit in zip(groups, fits, strict=True)]
    pooled = _residuals(pd.concat(errors))
    missing = sorted({MOSTLY_STARTUP, MOSTLY_TRANSFER, NEW_RANKS, NEW_NETWORK} - set(pooled))
    if missing:
        raise ReproError(
            f"{source}: no row says how far off a {missing[0]!r} is; add networks with several "
            "sizes of one rank count, and several rank counts"
        )
    return LinkCalibration(
        source=source,
        date=date.today().isoformat(),
        residuals=pooled,
        networks=tuple(
            fit.model_copy(update={"residuals": _own(error, pooled)})
            for fit, error in zip(fits, errors, strict=True)
        ),
    )


def _errors(rows: pd.DataFrame, fit: NetworkCalibration) -> pd.DataFrame:
    """ln(predicted / measured) of rows by fits that have not seen their size of their log, their
    (ranks, nodes) or the network; their kind, and weights by which all networks count alike."""
    transfer = fit.times(collective_arrays(rows)).mostly_transfer
    by_size = pd.DataFrame(
        {"error": errors_by_size(rows), "kind": np.where(transfer, MOSTLY_TRANSFER, MOSTLY_STARTUP)}
    )
    cells = rows.groupby(["ranks", "nodes"]).ngroup()
    by_ranks = pd.DataFrame({"error": _held_out(rows, cells), "kind": NEW_RANKS})
    parts = [by_size, by_ranks]
    if all(peak_prior(fit.gpu, fit.network, nodes) for _, nodes in fit.peaks_GBps):
        error = _log_errors(rows, prior_fit(rows))
        parts.append(pd.DataFrame({"error": error, "kind": NEW_NETWORK}))
    errors = pd.concat(parts).dropna()
    return errors.assign(weight=1 / errors.groupby("kind").error.transform("size"))


def errors_by_size(rows: pd.DataFrame) -> pd.Series:
    """ln(predicted / measured) of a network's rows, each by a fit that has not seen its size of its
    log (collective, ranks, nodes); NaN where its ranks and nodes have no other size."""
    cells = rows.groupby(["ranks", "nodes"]).ngroup()
    sizes = rows.groupby(["collective", "ranks", "nodes", "size_bytes"]).ngroup()
    # Of a (ranks, nodes) with a single size, that size is a new rank count, not a new size.
    several = sizes.groupby(cells).transform("nunique") > 1
    return _held_out(rows, sizes).where(several)


def line_errors_by_size(rows: pd.DataFrame) -> pd.Series:
    """The same of the baseline: each log's own line, time = latency + size / bandwidth.

    Lines have the least sum of squared relative errors, and neither part below zero. NaN where a
    log has fewer than three sizes, so that no line is left without one of them.
    """
    errors = pd.Series(np.nan, index=rows.index)
    for _, log in rows.groupby(["collective", "ranks", "nodes"]):
        size, time = (log[name].to_numpy(dtype=float) for name in ("size_bytes", "time_us"))
        if len(np.unique(size)) < 3:
            continue
        for held in (size == one for one in np.unique(size)):
            terms = np.stack([np.ones_like(size), size], axis=1)
            seen = terms[~held] / time[~held, None]
            line, _ = nnls(seen, np.ones(len(seen)))
            errors[log.index[held]] = np.log(terms[held] @ line / time[held])
    return errors


def _held_out(rows: pd.DataFrame, groups: pd.Series) -> pd.Series:
    """ln(predicted / measured), each group by a fit to the others; NaN where there are none."""
    errors = pd.Series(np.nan, index=rows.index)
    if groups.nunique() > 1:
        for group in groups.unique():
            held = (groups == group).to_numpy()
            try:
                errors[held] = _log_errors(rows[held], _fit(rows[~held]))
            except ReproError:
                # The others are on several nodes and these on one, or the other way round.
                continue
    return errors


def _log_errors(rows: pd.DataFrame, fit: NetworkCalibration) -> pd.Series:
    time = fit.times(collective_arrays(rows)).time_s
    return pd.Series(np.log(time / (rows.time_us.to_numpy(dtype=float) * 1e-6)), index=rows.index)


def _residuals(errors: pd.DataFrame) -> dict[str, Residuals]:
    """By kind."""
    return {
        str(kind): Residuals(
            rows=len(part),
            mape_pct=float(100 * np.average(np.abs(np.expm1(part.error)), weights=part.weight)),
            half_width=float(
                np.quantile(part.error.abs(), LEVEL, weights=part.weight, method="inverted_cdf")
            ),
        )
        for kind, part in errors.groupby("kind")
    }


def _own(errors: pd.DataFrame, pooled: dict[str, Residuals]) -> dict[str, Residuals]:
    """One network's residuals; of few rows, no narrower than those of all networks."""
    own = _residuals(errors[errors.kind != NEW_NETWORK])
    for kind, value in own.items():
        if value.rows < _FEW:
            width = max(value.half_width, pooled[kind].half_width)
            own[kind] = value.model_copy(update={"half_width": width})
    return own


def write_links(value: LinkCalibration, path: Path) -> None:
    """Write calibrated networks as YAML with numbers of four digits, atomically."""
    lines = (
        "# Written by `repro calibrate`; what each entry is: repro.predict.network.links.\n"
        "# Residuals are of rows that the fit has not seen; `half_width` is the 90 % quantile of\n"
        "# |ln(predicted / measured)|.\n"
    )
    content = yaml.safe_dump(
        rounded(value.model_dump(mode="json")), sort_keys=False, default_flow_style=None, width=100
    )
    replace_text(path, lines + content)


def rounded(value: Any) -> Any:
    """The same with numbers of four digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
