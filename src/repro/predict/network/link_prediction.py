"""Predict collectives on calibrated networks, which a cluster may have, and on others by name."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repro.catalog.systems.clusters import Cluster
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.predict.network.links import (
    NEW_NETWORK,
    NEW_RANKS,
    STARTUP,
    TRANSFER,
    Cases,
    LinkCalibration,
    NetworkCalibration,
    NetworkModel,
    as_cases,
    prior_fit,
    read_links,
    steps,
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
    model = entry.model
    time, transfer = model.time_s(cases)
    own = residuals | entry.residuals
    known = np.where(transfer, own[TRANSFER].half_width, own[STARTUP].half_width)
    seen = np.array([cell in model.table for cell in cases.cells])[cases.which]
    return time, np.where(seen, known, own[NEW_RANKS].half_width)


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network of `params/links.yaml`.

    Attributes
    ----------
    residuals
        By what a collective mostly is (`STARTUP`, `TRANSFER`).
    """

    model: NetworkModel
    residuals: Mapping[str, Residuals]

    @property
    def fabric_bytes_per_s(self) -> float | None:
        """Peak bus bandwidth on the most nodes that were measured; None without any on several."""
        between = [(nodes, ranks) for ranks, nodes in self.model.table if nodes > 1]
        if not between:
            return None
        nodes, ranks = max(between)
        return 1e9 * self.model.table[ranks, nodes]

    def time_s(
        self, collective: str, size_bytes: Array, ranks: Array, nodes: Array, error: Array
    ) -> Array:
        """How long collectives take; NaN at ranks on nodes that were not measured.

        Parameters
        ----------
        error
            How much longer than the model says, in half widths of its 90 % interval.
        """
        cells = tuple(self.model.table)
        at = np.array([(ranks == n) & (nodes == count) for n, count in cells])
        link_bytes = bus_factor(collective, ranks) * size_bytes
        cases = Cases(link_bytes, steps(collective, ranks), cells, at.argmax(axis=0))
        time, transfer = self.model.time_s(cases)
        kinds = (self.residuals[kind].half_width for kind in (TRANSFER, STARTUP))
        slower = np.exp(np.where(transfer, *kinds) * error)
        return np.where(at.any(axis=0), time * slower, np.nan)


def measured_network(cluster: Cluster) -> MeasuredNetwork | None:
    """What `Cluster.network` names; None where a cluster names none.

    Raises
    ------
    ReproError
        No such network was calibrated on the cluster's GPU.
    """
    if cluster.network is None:
        return None
    links, gpu = read_links(), cluster.device.label
    for entry in links.networks:
        if (entry.gpu, entry.network) == (gpu, cluster.network):
            return MeasuredNetwork(entry.model, links.residuals | entry.residuals)
    raise ReproError(
        f"{cluster.label}: params/links.yaml has no network {cluster.network!r} of GPU {gpu!r}; "
        "measure it and run `repro calibrate` with these two names and its --log"
    )
