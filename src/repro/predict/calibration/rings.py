"""The bus bandwidth of rings below one switch, from measured collectives."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from repro.catalog.clusters import Cluster
from repro.predict.calibration.rows import cluster_like
from repro.predict.workload import Array

# Messages from which on the transfer, not the latency, decides.
_LARGE_BYTES = 64e6


@dataclass(frozen=True)
class Ring:
    """busbw(n) = efficiency x nominal link rate x n / (n + ramp)."""

    efficiency: float
    ramp: float


def fit_ring(rows: pd.DataFrame) -> Ring:
    """Fit large all-reduces of A100 behind NVLink switches."""
    chosen = rows[
        (rows.gpu == "A100")
        & (rows.collective == "all_reduce")
        & (rows.nodes == 1)
        & (rows.size_bytes >= _LARGE_BYTES)
    ]
    ranks = chosen.ranks.to_numpy(dtype=float)
    size, time = chosen.size_bytes.to_numpy(dtype=float), chosen.time_us.to_numpy() * 1e-6
    nominal = _node_link_bytes_per_s(cluster_like("A100-SXM-80GB", 8, 1600.0))

    def log_error(x: Array) -> Array:
        efficiency, ramp, latency = np.exp(x)
        bus = efficiency * nominal * ranks / (ranks + ramp)
        predicted = 2 * (ranks - 1) / ranks * size / bus + latency
        error: Array = np.log(predicted / time)
        return error

    found = np.exp(least_squares(log_error, np.log([0.8, 0.5, 5e-5])).x)
    return Ring(float(found[0]), float(found[1]))


def _node_link_bytes_per_s(cluster: Cluster) -> float:
    return cluster.topology.levels[-2].link_gbps * 1e9 / 8
