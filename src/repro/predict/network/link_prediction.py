"""Predict collectives on calibrated networks, and on others by their names."""

import numpy as np
import pandas as pd

from repro.errors import ReproError
from repro.predict.network.links import (
    NEW_NETWORK,
    NEW_RANKS,
    STARTUP,
    TRANSFER,
    LinkCalibration,
    NetworkCalibration,
    NetworkModel,
    as_cases,
    prior_fit,
    read_links,
)
from repro.predict.parameters import Residuals
from repro.predict.workload import Array


def predict_collective(rows: pd.DataFrame, links: LinkCalibration | None = None) -> pd.DataFrame:
    """Predict collectives.

    Parameters
    ----------
    rows : DataFrame
        gpu, network, collective, ranks, nodes, size_bytes. The size is that of nccl-tests: of all
        ranks together for all_gather, reduce_scatter and all_to_all.
    links : LinkCalibration, optional
        Default: that of params/calibration/links.yaml.

    Returns
    -------
    DataFrame
        By the index of `rows`: time_s, and half_width, the x for a 90 % interval from time_s / e^x
        to time_s e^x. It comes from the residuals of rows as well known as this one: of the
        network, of new rank counts, or of networks that were never measured, whose names alone
        give their rates.

    Raises
    ------
    ReproError
        A collective is unknown, a number is missing, or a network was never measured and its name
        gives no rate.
    """
    calibrated = read_links() if links is None else links
    for name in ("gpu", "network"):
        if rows[name].isna().any():
            raise ReproError(f"row {rows.index[rows[name].isna()][0]}: no {name}; name it")
    known = {(entry.gpu, entry.network): entry for entry in calibrated.networks}
    time, width = np.empty(len(rows)), np.empty(len(rows))
    for gpu, network in rows[["gpu", "network"]].drop_duplicates().itertuples(index=False):
        at = ((rows.gpu == gpu) & (rows.network == network)).to_numpy()
        time[at], width[at] = _predict(rows[at], known.get((gpu, network)), calibrated.residuals)
    return pd.DataFrame({"time_s": time, "half_width": width}, index=rows.index)


def _predict(
    rows: pd.DataFrame, entry: NetworkCalibration | None, residuals: dict[str, Residuals]
) -> tuple[Array, Array]:
    """Times and half widths of one network's rows; `entry` is None where it was never measured."""
    cases = as_cases(rows)
    if entry is None:
        time, _ = prior_fit(rows).time_s(cases)
        return time, np.full(len(rows), residuals[NEW_NETWORK].half_width)
    time, transfer = NetworkModel(entry.gpu, entry.network, entry.costs, entry.table).time_s(cases)
    own = residuals | entry.residuals
    known = np.where(transfer, own[TRANSFER].half_width, own[STARTUP].half_width)
    seen = np.array([cell in entry.table for cell in cases.cells])[cases.which]
    return time, np.where(seen, known, own[NEW_RANKS].half_width)
