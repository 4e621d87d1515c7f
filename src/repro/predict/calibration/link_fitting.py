"""Calibration of networks to measured collectives, and their cross-validation."""

from datetime import date

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from repro.errors import ReproError
from repro.predict.calibration.fit import held_out, most_probable, residuals_of
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

# Fewer held-out rows than this do not show a 90 % quantile.
_FEW = 8
_ANY_GBPS = Prior(50.0, 1.5)


def _fit(rows: pd.DataFrame) -> NetworkCalibration:
    """Fit costs and peak bus bandwidths of one network.

    Logs have rows that are off by a factor of 3 to 200, such as 70 ms for 2 MiB on MI250X. The pull
    of soft L1 never fades; Cauchy's loss disregards such rows.
    """
    gpu, network = str(rows.gpu.iloc[0]), str(rows.network.iloc[0])
    chosen, measured = collective_arrays(rows), rows.time_us.to_numpy(dtype=float) * 1e-6
    costs = cost_priors(int(rows.nodes.max()))
    peaks = {
        f"{ranks} ranks on {nodes} nodes": peak_prior(gpu, network, nodes) or _ANY_GBPS
        for ranks, nodes in chosen.pairs
    }

    def costs_of(values: dict[str, float]) -> Costs:
        return Costs(**{name: values[name] for name in costs})

    def log_errors(values: dict[str, float]) -> Array:
        rates = np.array([values[name] for name in peaks])
        transfer_s = chosen.link_bytes / (1e9 * rates[chosen.which])
        times = regime_times(chosen.link_bytes, chosen.steps, transfer_s, costs_of(values))
        errors: Array = np.log(times.time_s / measured)
        return errors

    found = most_probable(log_errors, costs | peaks, loss="cauchy").values
    return NetworkCalibration(
        gpu=gpu,
        network=network,
        rows=len(rows),
        costs=costs_of(found),
        peaks=tuple(
            BusBandwidth(ranks=ranks, nodes=nodes, busbw_GBps=found[name])
            for (ranks, nodes), name in zip(chosen.pairs, peaks, strict=True)
        ),
        residuals={},
    )


def calibrate_links(rows: pd.DataFrame, source: str) -> LinkCalibration:
    """Fit every network of measured collectives, and cross-validate.

    Parameters
    ----------
    rows : DataFrame
        As `repro.predict.tables.reading.read_collectives` reads them: gpu, ranks, nodes, network,
        collective, size_bytes, time_us.
    source : str
        Names of the files that the rows come from.

    Raises
    ------
    ReproError
        A collective is unknown, or no held-out row shows the error of some kind of predictions.
    """
    groups = [group for _, group in rows.groupby(["gpu", "network"], sort=False)]
    fits = [_fit(group) for group in groups]
    errors = [_errors(group, fit) for group, fit in zip(groups, fits, strict=True)]
    pooled = _residuals_by_kind(pd.concat(errors))
    missing = sorted({MOSTLY_STARTUP, MOSTLY_TRANSFER, NEW_RANKS, NEW_NETWORK} - set(pooled))
    if missing:
        raise ReproError(
            f"{source}: no held-out row shows the error of {missing[0]!r}; fix: add networks with "
            "several sizes of one rank count, and several rank counts"
        )
    return LinkCalibration(
        source=source,
        date=date.today().isoformat(),
        residuals=pooled,
        networks=tuple(
            fit.model_copy(update={"residuals": _network_residuals(error, pooled)})
            for fit, error in zip(fits, errors, strict=True)
        ),
    )


def _errors(rows: pd.DataFrame, fit: NetworkCalibration) -> pd.DataFrame:
    """Return held-out errors of one network's rows by kind, weighted so that networks count alike.

    Held out are each size of a log, each (ranks, nodes), and the network as a whole.
    """
    transfer = fit.times(collective_arrays(rows)).mostly_transfer
    by_size = pd.DataFrame(
        {"error": errors_by_size(rows), "kind": np.where(transfer, MOSTLY_TRANSFER, MOSTLY_STARTUP)}
    )
    parts = [by_size, pd.DataFrame({"error": _held_out(rows, _cells(rows)), "kind": NEW_RANKS})]
    if all(peak_prior(fit.gpu, fit.network, nodes) for _, nodes in fit.peaks_GBps):
        error = _log_errors(rows, prior_fit(rows))
        parts.append(pd.DataFrame({"error": error, "kind": NEW_NETWORK}, index=rows.index))
    errors = pd.concat(parts).dropna()
    return errors.assign(weight=1 / errors.groupby("kind").error.transform("size"))


def errors_by_size(rows: pd.DataFrame) -> pd.Series:
    """Return ln(predicted / measured) of a network's rows by fits without their size.

    The fit lacks that size of the row's log (collective, ranks, nodes). NaN where the row's ranks
    and nodes have no other size.
    """
    sizes = rows.groupby(["collective", "ranks", "nodes", "size_bytes"]).ngroup()
    # The only size of some ranks and nodes would test a new rank count, not a new size.
    several = sizes.groupby(_cells(rows)).transform("nunique") > 1
    return _held_out(rows, sizes).where(several)


def line_errors_by_size(rows: pd.DataFrame) -> pd.Series:
    """Return errors like `errors_by_size` of the baseline, time = latency + size / bandwidth.

    Each log has a line of its own, with the least sum of squared relative errors and neither part
    below zero. NaN where a log has fewer than three sizes.
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


def _cells(rows: pd.DataFrame) -> pd.Series:
    """Return a number for each row's (ranks, nodes)."""
    return rows.groupby(["ranks", "nodes"]).ngroup()


def _held_out(rows: pd.DataFrame, groups: pd.Series) -> pd.Series:
    """Return ln(predicted / measured) by fits without a row's group; NaN where no fit applies."""

    def errors_of_fit(seen: Array, held: Array) -> Array | float:
        try:
            return _log_errors(rows[held], _fit(rows[seen]))
        except ReproError:
            # Rows on one node cannot predict several nodes, nor the reverse.
            return np.nan

    return held_out(groups, errors_of_fit)


def _log_errors(rows: pd.DataFrame, fit: NetworkCalibration) -> Array:
    time = fit.times(collective_arrays(rows)).time_s
    errors: Array = np.log(time / (rows.time_us.to_numpy(dtype=float) * 1e-6))
    return errors


def _residuals_by_kind(errors: pd.DataFrame) -> dict[str, Residuals]:
    return {
        str(kind): residuals_of(part.error.to_numpy(), part.weight.to_numpy())
        for kind, part in errors.groupby("kind")
    }


def _network_residuals(errors: pd.DataFrame, pooled: dict[str, Residuals]) -> dict[str, Residuals]:
    """Return one network's residuals; those of few rows are no narrower than the pooled ones."""
    residuals = _residuals_by_kind(errors[errors.kind != NEW_NETWORK])
    for kind, value in residuals.items():
        if value.rows < _FEW:
            width = max(value.half_width, pooled[kind].half_width)
            residuals[kind] = value.model_copy(update={"half_width": width})
    return residuals
