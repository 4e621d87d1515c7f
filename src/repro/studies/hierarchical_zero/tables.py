"""Measurements of ZeRO schemes: throughput, waiting, bytes by level, and memory."""

from collections import Counter

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.topology import Topology
from repro.collectives.levels import sent_by_level
from repro.observe.precision import half_width
from repro.results.communication import one_configuration, transfers

_COMMUNICATING = ("straggler wait", "gradient sync", "parameter all-gather")


def scheme_table(results: xr.Dataset) -> pd.DataFrame:
    """Return the means of every scheme; times are at full scale.

    Parameters
    ----------
    results
        With the dimension `scheme`.

    Returns
    -------
    DataFrame
        By `scheme`: `iteration_s`; `iterations_per_min` with `low` and `high`, its 95 % interval;
        percent of the iteration in `straggler wait`, `gradient sync` and `parameter all-gather`;
        of the fullest rank `weight_mb`, `gradient_mb`, `adam_state_mb`, `peak_mb`.
    """
    rows = {}
    for name in results["scheme"].values:
        one = one_configuration(results.sel(scheme=name))
        scale = float(one["time_scale"])
        times = (one["iteration_time_s"].mean("rank") / scale).dropna("iteration")
        mean, half = float(times.mean()), half_width(times.values.tolist())
        shares = one["phase_time_s"].sum(["iteration", "rank"])
        shares = 100 * shares / float(one["iteration_time_s"].sum())
        rows[str(name)] = {
            "iteration_s": mean,
            "iterations_per_min": 60 / mean,
            "low": 60 / (mean + half),
            "high": 60 / (mean - half) if half < mean else np.nan,
            **{phase: float(shares.sel(phase=phase)) for phase in _COMMUNICATING},
            **{
                f"{part}_mb": 1e-6 * float(one[f"{part}_bytes"].max())
                for part in ("weight", "adam_state")
            },
            "gradient_mb": 1e-6 * float(one["gradient_bytes"]),
            "peak_mb": 1e-6 * float(one["peak_memory_bytes"].max()),
        }
    return pd.DataFrame(rows).T.rename_axis("scheme")


def logged_by_level(results: xr.Dataset, topology: Topology) -> pd.DataFrame:
    """Return a rank's bytes of an iteration, by the level of links that they crossed.

    Returns
    -------
    DataFrame
        `scheme`, `level`, `phase`, `operation`, `sent_bytes` (`repro.collectives.levels`), the
        mean of all ranks and iterations.
    """
    found = []
    for name in results["scheme"].values:
        calls = transfers(results.sel(scheme=name))
        per = len(calls[["iteration", "rank"]].drop_duplicates())
        moved = calls[calls.operation != "barrier"]
        alike = Counter(zip(moved.phase, moved.operation, moved.ranks, moved.bytes, strict=True))
        for (phase, operation, ranks, size), count in alike.items():
            sent = sent_by_level(operation, ranks, size * count / per, topology)
            found += [(str(name), level, phase, operation, part) for level, part in sent.items()]
    columns = ["scheme", "level", "phase", "operation", "sent_bytes"]
    frame = pd.DataFrame(found, columns=columns)
    return frame.groupby(columns[:4], sort=False, as_index=False).sum()
