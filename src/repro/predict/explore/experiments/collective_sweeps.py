"""Bandwidths of collectives that nothing was run for here: predicted, and published.

Both have the variables of `repro.results.collectives.bandwidths`, at full scale.
"""

from itertools import product
from typing import cast

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

# Clusters of which a table of collectives was published, as files of data/published/.
_PUBLISHED = {"big-red-200": "nccl_bigred200.csv"}
_ENDS = {"": "typical_GBps", "_low": "low_GBps", "_high": "high_GBps"}


def predict_sweep(selection: SweepSelection, rate_scale: float = 1.0) -> xr.Dataset:
    """The bus bandwidths to expect of a selection's collectives among all ranks.

    Parameters
    ----------
    rate_scale : float
        Of a testbed whose sizes these are: there a message of S bytes takes the time that one of
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
        busbw = {end: expected[column].to_numpy() for end, column in _ENDS.items()}
        parts.append(_dataset("predicted", name, gpus, collective, sizes, busbw, 1 / rate_scale))
    return merge(parts)


def published_sweep(selection: SweepSelection) -> xr.Dataset:
    """What was published of a selection's cluster, without intervals.

    Raises
    ------
    NotRunHere
        Nothing was.
    """
    if selection.cluster_name not in _PUBLISHED:
        raise NotRunHere(f"no table of collectives of {selection.cluster.label} was published")
    rows = read_rows(PUBLISHED / _PUBLISHED[selection.cluster_name])
    known = sorted(set(zip(rows.collective, rows.ranks, strict=True)))
    rows = rows[rows.ranks.isin(selection.gpus) & rows.collective.isin(selection.collectives)]
    if rows.empty:
        others = ", ".join(f"{name} on {gpus} GPUs" for name, gpus in known)
        raise NotRunHere(f"of {selection.cluster.label} were published: {others}")
    parts = []
    for key, group in rows.groupby(["collective", "ranks"]):
        collective, gpus = cast(tuple[str, int], key)
        sizes, seconds = group.size_bytes.to_numpy(), 1e-6 * group.time_us.to_numpy()
        busbw = busbw_GBps(collective, gpus, sizes, seconds)
        chosen = dict.fromkeys(_ENDS, busbw)
        parts.append(_dataset("paper", selection.protocols[0], gpus, collective, sizes, chosen))
    return merge(parts)


def _own(selection: SweepSelection, name: str) -> str | None:
    """A protocol whose rate is the cluster's own; None for its fabric."""
    return name if name in selection.cluster.protocols else None


def _dataset(
    source: str,
    transport: str,
    gpus: int,
    collective: str,
    sizes: np.ndarray,
    busbw: dict[str, np.ndarray],
    size_scale: float = 1.0,
) -> xr.Dataset:
    """Bandwidths at full scale of messages `size_scale` times as large as `sizes` says."""
    factor = float(bus_factor(collective, gpus))
    opposite = {"": "", "_low": "_high", "_high": "_low"}
    found = {}
    for end, values in busbw.items():
        found[f"busbw_GBps{end}"] = found[f"full_scale_busbw_GBps{end}"] = values
        found[f"algbw_GBps{end}"] = values / factor
        found[f"time_s{opposite[end]}"] = factor * size_scale * sizes / values * 1e-9
    where = {
        "source": source,
        "protocol": transport,
        "gpus": gpus,
        "layout": "world",
        "collective": collective,
        "in_place": OUT_OF_PLACE,
    }
    dataset = xr.Dataset(
        {name: ("size_bytes", values) for name, values in found.items()},
        coords={"size_bytes": sizes, **where},
    )
    return dataset.expand_dims(list(where))


def judge_sweep(selection: SweepSelection, results: xr.Dataset) -> pd.DataFrame:
    """Whether the bandwidths among all ranks, out of place, are to be expected of the cluster.

    Parameters
    ----------
    results : Dataset
        Measured or published, one source.

    Returns
    -------
    DataFrame
        A row per protocol, GPUs, collective and size: what was measured at full scale, the 90 %
        interval and the verdict.
    """
    if not results.data_vars:
        return pd.DataFrame(columns=["collective", "regime", "verdict"])
    scale = float(results.attrs.get("rate_scale", 1.0))
    chosen = (
        bandwidths(results).squeeze("source", drop=True).sel(layout="world", in_place=OUT_OF_PLACE)
    )
    parts = []
    # Some of those that were asked for may not have been there.
    for name in chosen["protocol"].values.tolist():
        rows = chosen["time_s"].sel(protocol=name, drop=True).to_series().dropna().reset_index()
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
