"""Sweeps of collectives: predicted, published, and compared with what to expect.

Predicted and published sweeps have the variables of `repro.results.collectives.bandwidths`, at full
scale.
"""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.studies.collectives import SweepSelection
from repro.catalog.systems.protocols import transport
from repro.collectives.definitions import bus_factor, busbw_GBps
from repro.errors import NotRunHere
from repro.paths import PUBLISHED
from repro.predict.network.expected import expected_busbw, judge_busbw
from repro.predict.tables.reading import read_rows
from repro.results.collectives import OUT_OF_PLACE, bandwidths
from repro.results.merging import merge

# Published tables of collectives in data/published/, by cluster.
_PUBLISHED = {"big-red-200": "nccl_bigred200.csv"}
# Suffixes of variables, with that of the time at which a bandwidth has its value, and the column of
# `expected_busbw`.
_ENDS = {
    "": ("", "typical_GBps"),
    "_low": ("_high", "low_GBps"),
    "_high": ("_low", "high_GBps"),
}


def predict_sweep(selection: SweepSelection, rate_scale: float = 1.0) -> xr.Dataset:
    """Predict the bus bandwidths of a selection's collectives among all ranks.

    Parameters
    ----------
    rate_scale : float
        Factor of a testbed's rates: a message of S bytes takes the time that one of
        S / `rate_scale` bytes takes at full scale.

    Returns
    -------
    Dataset
        (source, protocol, gpus, layout, collective, in_place, size_bytes), the intervals at 90 %.
    """
    sizes = np.array(selection.profile.sizes_bytes)
    parts = []
    for name, gpus, collective in product(
        selection.protocols, selection.gpus, selection.collectives
    ):
        expected = expected_busbw(
            selection.cluster_name, collective, sizes / rate_scale, gpus, _own(selection, name)
        )
        busbw = {end: expected[column].to_numpy() for end, (_, column) in _ENDS.items()}
        where = {"source": "predicted", "protocol": name, "gpus": gpus, "collective": collective}
        parts.append(_dataset(where, sizes, busbw, 1 / rate_scale))
    return merge(parts)


def published_sweep(selection: SweepSelection) -> xr.Dataset:
    """Return the published bandwidths of a selection's cluster, without intervals.

    Raises
    ------
    NotRunHere
        None were published.
    """
    if selection.cluster_name not in _PUBLISHED:
        raise NotRunHere(f"no table of collectives of {selection.cluster.label} was published")
    rows = read_rows(PUBLISHED / _PUBLISHED[selection.cluster_name])
    known = sorted(set(zip(rows.collective, rows.ranks, strict=True)))
    parts = []
    for collective, gpus in known:
        if collective in selection.collectives and gpus in selection.gpus:
            chosen = rows[(rows.collective == collective) & (rows.ranks == gpus)]
            sizes = chosen.size_bytes.to_numpy()
            busbw = busbw_GBps(collective, gpus, sizes, 1e-6 * chosen.time_us.to_numpy())
            where = {"source": "paper", "protocol": selection.protocols[0]}
            where |= {"gpus": gpus, "collective": collective}
            parts.append(_dataset(where, sizes, dict.fromkeys(_ENDS, busbw)))
    if not parts:
        others = ", ".join(f"{name} on {gpus} GPUs" for name, gpus in known)
        raise NotRunHere(f"of {selection.cluster.label} were published: {others}")
    return merge(parts)


def _own(selection: SweepSelection, name: str) -> str | None:
    """Return a protocol whose rate is the cluster's own; None for its fabric."""
    return name if name in selection.cluster.protocols else None


def _dataset(
    where: dict[str, Any], sizes: np.ndarray, busbw: dict[str, np.ndarray], size_scale: float = 1.0
) -> xr.Dataset:
    """Return full-scale bandwidths of messages `size_scale` times as large as `sizes`."""
    factor = float(bus_factor(where["collective"], where["gpus"]))
    found = {}
    for end, values in busbw.items():
        found[f"busbw_GBps{end}"] = found[f"full_scale_busbw_GBps{end}"] = values
        found[f"algbw_GBps{end}"] = values / factor
        found[f"time_s{_ENDS[end][0]}"] = factor * size_scale * sizes / values * 1e-9
    where = where | {"layout": "world", "in_place": OUT_OF_PLACE}
    dataset = xr.Dataset(
        {name: ("size_bytes", values) for name, values in found.items()},
        coords={"size_bytes": sizes, **where},
    )
    return dataset.expand_dims(["source", "protocol", "gpus", "layout", "collective", "in_place"])


def judge_sweep(selection: SweepSelection, results: xr.Dataset) -> pd.DataFrame:
    """Compare bandwidths among all ranks, out of place, with the cluster's expected ones.

    Parameters
    ----------
    results : Dataset
        Measured or published, one source.

    Returns
    -------
    DataFrame
        The columns of `judge_busbw` at full scale: a row per protocol, GPUs, collective and size.
    """
    if not results.data_vars:
        return pd.DataFrame(columns=["collective", "regime", "verdict"])
    scale = float(results.attrs.get("rate_scale", 1.0))
    times = bandwidths(results)["time_s"].squeeze("source", drop=True)
    times = times.sel(layout="world", in_place=OUT_OF_PLACE)
    parts = []
    # Some requested protocols may not have run.
    for name in times["protocol"].values.tolist():
        rows = times.sel(protocol=name, drop=True).to_series().dropna().reset_index()
        measured = pd.DataFrame(
            {
                "collective": rows.collective,
                "ranks": rows.gpus,
                "nodes": None,
                "size_bytes": rows.size_bytes / scale,
                "time_us": 1e6 * rows.time_s,
            }
        )
        judged = judge_busbw(measured, selection.cluster_name, _own(selection, name))
        parts.append(judged.assign(protocol=transport(name).label))
    return pd.concat(parts, ignore_index=True)
