"""Time of one collective on a network where collectives were measured: a fitted curve.

The time of a collective that moves V = factor x S bytes over each rank's link (`bus_factor`) is

    T = launch + hop x steps  +  startup x V / (V + startup_bytes)  +  V / B(ranks, nodes)

Three regimes follow. Small messages cost latency: a launch, and a hop for each message that waits
for another one (`steps`). Middle sizes add the start-up: messages that outgrow one buffer of the
low-latency protocol go through a pipeline of large buffers, whose handshakes cost the same at any
size. Large messages approach the peak: where V is far above `startup_bytes`, the bus bandwidth is
B V / (V + V_half) with V_half = B x (launch + hop x steps + startup).

B has a value for each (ranks, nodes), because it is no smooth function of them. Between nodes the
NICs limit it. Inside nodes without a switch it is the number of disjoint rings that the ranks'
links form: on eight V100 in a hybrid cube mesh, 8 ranks have six times the rate of 2 ranks.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, read_yaml
from repro.catalog.systems.clusters import Cluster
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.paths import find
from repro.predict.parameters import Prior, Residuals
from repro.predict.workload import Array

LINKS = "links.yaml"

# Kinds of predictions, each with residuals of its own for the interval.
MOSTLY_STARTUP, MOSTLY_TRANSFER = "mostly start-up", "mostly transfer"
NEW_RANKS, NEW_NETWORK = "new rank count", "new network"

# GB/s in each direction over all NVLinks of a GPU, from data sheets.
_NVLINK_GBPS = {"V100": 150.0, "A100": 300.0, "H100": 450.0, "H200": 450.0, "B200": 900.0}
_RATE = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)\s*Gb", re.IGNORECASE)
# Fractions of nominal rates that collectives reach. Inside nodes one ring or all six of a V100 run.
NODE_EFFICIENCY = Prior(0.8, 1.0)
FABRIC_EFFICIENCY = Prior(0.85, 0.4)


class Costs(Entry):
    """Costs of a collective in addition to its transfer.

    launch_s
        Kernel launch, first and last synchronisation, in seconds per collective.
    hop_s
        Seconds per message that waits for another one.
    startup_s, startup_bytes
        Seconds that the pipeline of large buffers adds, and the bytes on each rank's link at which
        half of them are due.
    """

    launch_s: PositiveFloat
    hop_s: PositiveFloat
    startup_s: PositiveFloat
    startup_bytes: PositiveFloat


# Medians from published logs of two other machines (12 V100 behind switches; two nodes of four
# GH200), which need up to 2 or 3 times more or less. Start-up on one node, and between nodes.
_PRIORS = {
    "launch_s": Prior(12e-6, 0.7),
    "hop_s": Prior(4e-6, 0.7),
    "startup_s": Prior(80e-6, 0.7),
    "startup_bytes": Prior(2e6, 1.0),
}
_FABRIC_STARTUP = Prior(200e-6, 0.7)


class BusBandwidth(Entry):
    """Peak bus bandwidth of one number of ranks on one number of nodes."""

    ranks: PositiveInt
    nodes: PositiveInt
    busbw_GBps: PositiveFloat


class NetworkCalibration(Entry):
    """One GPU on one network: fitted costs and peaks, with residuals of held-out rows by kind.

    With fewer than eight held-out rows, `half_width` is at least that of all networks together.
    """

    gpu: str
    network: str
    rows: int
    costs: Costs
    peaks: tuple[BusBandwidth, ...]
    residuals: dict[str, Residuals]

    @property
    def peaks_GBps(self) -> dict[tuple[int, int], float]:
        """Peaks in GB/s by (ranks, nodes)."""
        return {(peak.ranks, peak.nodes): peak.busbw_GBps for peak in self.peaks}

    @property
    def fabric_bytes_per_s(self) -> float | None:
        """Peak bus bandwidth on the most nodes; None without a measurement on several nodes."""
        between = [peak for peak in self.peaks if peak.nodes > 1]
        if not between:
            return None
        return 1e9 * max(between, key=lambda peak: (peak.nodes, peak.ranks)).busbw_GBps

    def times(self, rows: "CollectiveArrays") -> "RegimeTimes":
        """Predict seconds of collectives."""
        bytes_per_s = 1e9 * np.array([self._peak(pair) for pair in rows.pairs])[rows.which]
        transfer_s = rows.link_bytes / bytes_per_s
        return regime_times(rows.link_bytes, rows.steps, transfer_s, self.costs)

    def _peak(self, pair: tuple[int, int]) -> float:
        """Look up a peak in GB/s, or interpolate between measured rank counts in logarithms.

        Beyond them the last one counts. One node and several nodes have separate peaks; without
        any measured one the prior is taken.
        """
        known, one_node = self.peaks_GBps, pair[1] == 1
        if pair in known:
            return known[pair]
        if near := sorted((n, rate) for (n, m), rate in known.items() if (m == 1) == one_node):
            ranks, rates = zip(*near, strict=True)
            return float(np.exp(np.interp(np.log(pair[0]), np.log(ranks), np.log(rates))))
        prior = peak_prior(self.gpu, self.network, pair[1])
        if prior is None:
            raise ReproError(
                f"no measured collective of gpu {self.gpu!r} on network {self.network!r} and "
                f"{'one node' if one_node else 'several nodes'} to predict from; add some to "
                "data/published/collectives_nccl.csv and run `repro calibrate`, or name the rate, "
                "as in '4x200 Gb/s per node'"
            )
        return prior.median

    def half_widths(self, rows: "CollectiveArrays", times: "RegimeTimes") -> Array:
        """Return x of each row's 90 % interval from time / e^x to time e^x."""
        measured = np.array([pair in self.peaks_GBps for pair in rows.pairs])[rows.which]
        transfer, startup, new_ranks = (
            self.residuals[kind].half_width for kind in (MOSTLY_TRANSFER, MOSTLY_STARTUP, NEW_RANKS)
        )
        seen = np.where(times.mostly_transfer, transfer, startup)
        return np.where(measured, seen, new_ranks)

    def measured_s(
        self, collective: str, size_bytes: Array, ranks: Array, nodes: Array, error: Array
    ) -> Array:
        """Predict seconds of collectives; NaN where their ranks and nodes were not measured.

        `error` is the deviation from the curve, in half widths of its 90 % interval.
        """
        pairs = tuple(self.peaks_GBps)
        at = np.array([(ranks == n) & (nodes == count) for n, count in pairs])
        link_bytes = bus_factor(collective, ranks) * size_bytes
        rows = CollectiveArrays(link_bytes, steps(collective, ranks), pairs, at.argmax(axis=0))
        times = self.times(rows)
        slower = np.exp(self.half_widths(rows, times) * error)
        return np.where(at.any(axis=0), times.time_s * slower, np.nan)


class LinkCalibration(Entry):
    """All calibrated networks. `residuals` are over all of them with equal weights per network."""

    source: str
    date: str
    residuals: dict[str, Residuals]
    networks: tuple[NetworkCalibration, ...]

    def find(self, gpu: str, network: str) -> NetworkCalibration | None:
        """Return a network with residuals of every kind; None if it was not calibrated."""
        for entry in self.networks:
            if (entry.gpu, entry.network) == (gpu, network):
                return entry.model_copy(update={"residuals": self.residuals | entry.residuals})
        return None


def read_links(path: Path | None = None) -> LinkCalibration:
    """Read the calibrated networks, by default of `params/links.yaml`.

    Raises
    ------
    ReproError
        The file is missing or not valid.
    """
    value: LinkCalibration = read_yaml(path or find(f"params/{LINKS}"), LinkCalibration)
    return value


def measured_network(cluster: Cluster) -> NetworkCalibration | None:
    """Return the calibrated network that a cluster names; None where it names none.

    Raises
    ------
    ReproError
        No such network was calibrated on the cluster's GPU.
    """
    if cluster.network is None:
        return None
    gpu = cluster.device.label
    found = read_links().find(gpu, cluster.network)
    if found is None:
        raise ReproError(
            f"{cluster.label}: params/links.yaml has no network {cluster.network!r} of GPU "
            f"{gpu!r}; measure it and run `repro calibrate` with these two names and its --log"
        )
    return found


def steps(collective: str, ranks: ArrayLike) -> Array:
    """Count messages of a collective that wait for one another.

    NCCL (src/graph/tuning.cc) sends small all-reduces up and down a tree: 2 log2 n. The others go
    round a ring, or to each peer: n - 1.
    """
    n = np.asarray(ranks, dtype=float)
    if collective == "send_recv":
        return np.ones_like(n)
    waiting: Array = 2 * np.log2(n) if collective == "all_reduce" else n - 1
    return waiting


def link_factor(collective: str, ranks: ArrayLike, below: ArrayLike) -> Array:
    """Return bytes over a vertex's link per byte of size, with `below` of the ranks below it.

    A ring enters and leaves a vertex once, so the factor is nccl-tests' bus factor. In an
    all-to-all each rank below sends to each rank outside: below (n - below)/n.
    """
    factor = bus_factor(collective, ranks)
    if collective != "all_to_all":
        return factor
    n, inside = np.asarray(ranks, dtype=float), np.asarray(below, dtype=float)
    return np.where(inside < n, inside * (n - inside) / n, factor)


@dataclass(frozen=True)
class RegimeTimes:
    """Seconds that collectives spend in each of the three regimes."""

    latency: Array
    startup: Array
    transfer: Array

    @property
    def time_s(self) -> Array:
        """Sum of all regimes."""
        return self.latency + self.startup + self.transfer

    @property
    def mostly_transfer(self) -> Array:
        """Whether the transfer takes more than half of the time."""
        return self.transfer > self.time_s / 2


def regime_times(link_bytes: Array, steps: Array, transfer_s: Array, costs: Any) -> RegimeTimes:
    """Evaluate the curve of the module's docstring; `costs` has the fields of `Costs`."""
    return RegimeTimes(
        latency=costs.launch_s + costs.hop_s * steps,
        startup=costs.startup_s * (link_bytes / (link_bytes + costs.startup_bytes)),
        transfer=transfer_s,
    )


@dataclass(frozen=True)
class CollectiveArrays:
    """Collectives as arrays: bytes on each rank's link, and dependent messages (row,).

    `pairs` are the distinct (ranks, nodes), `which` is each row's index in them.
    """

    link_bytes: Array
    steps: Array
    pairs: tuple[tuple[int, int], ...]
    which: Array


def collective_arrays(rows: pd.DataFrame) -> CollectiveArrays:
    """Convert rows to arrays.

    Raises
    ------
    ReproError
        A collective is unknown.
    """
    size, ranks, nodes = (
        rows[name].to_numpy(dtype=float) for name in ("size_bytes", "ranks", "nodes")
    )
    link_bytes, waiting = np.empty(len(rows)), np.empty(len(rows))
    for name in rows.collective.unique():
        at = (rows.collective == name).to_numpy()
        link_bytes[at] = link_factor(name, ranks[at], ranks[at] / nodes[at]) * size[at]
        waiting[at] = steps(name, ranks[at])
    pairs, which = np.unique(np.stack([ranks, nodes], axis=1), axis=0, return_inverse=True)
    distinct = tuple((int(n), int(count)) for n, count in pairs)
    return CollectiveArrays(link_bytes, waiting, distinct, which.ravel())


def peak_prior(gpu: str, network: str, nodes: int) -> Prior | None:
    """Estimate peak bus bandwidth in GB/s from names; None where no name has a rate.

    Inside a node the GPU's NVLinks give it, else the first rate in the network's name, which is
    that of all NICs of a node (`4x200 Gb/s`).
    """
    if nodes == 1 or "nvlink" in network.lower():
        known = [rate for name, rate in _NVLINK_GBPS.items() if gpu.startswith(name)]
        if known and "pcie" not in gpu.lower():
            return Prior(NODE_EFFICIENCY.median * known[0], NODE_EFFICIENCY.deviation)
    rate = _RATE.search(network)
    if nodes > 1 and rate:
        nominal = int(rate[1] or 1) * int(rate[2]) / 8
        return Prior(FABRIC_EFFICIENCY.median * nominal, FABRIC_EFFICIENCY.deviation)
    return None


def cost_priors(nodes: int) -> dict[str, Prior]:
    """Return priors of the costs by name, for collectives on up to `nodes` nodes."""
    return _PRIORS | ({"startup_s": _FABRIC_STARTUP} if nodes > 1 else {})


def usual_costs(nodes: int) -> Costs:
    """Return the priors' medians, for networks without measurements."""
    return Costs(**{name: prior.median for name, prior in cost_priors(nodes).items()})


def prior_fit(rows: pd.DataFrame) -> NetworkCalibration:
    """Return the curve of a network without any measurement, from its name and the priors."""
    return NetworkCalibration(
        gpu=str(rows.gpu.iloc[0]),
        network=str(rows.network.iloc[0]),
        rows=0,
        costs=usual_costs(int(rows.nodes.max())),
        peaks=(),
        residuals={},
    )


def predict_collective(rows: pd.DataFrame, links: LinkCalibration | None = None) -> pd.DataFrame:
    """Predict collectives by the names of their GPU and network.

    Parameters
    ----------
    rows : DataFrame
        gpu, network, collective, ranks, nodes, size_bytes. The size is that of nccl-tests: of all
        ranks together for all_gather, reduce_scatter and all_to_all.
    links : LinkCalibration, optional
        Calibrated networks. Default: those of params/links.yaml.

    Returns
    -------
    DataFrame
        By the index of `rows`: time_s, and half_width, the x for a 90 % interval from time_s / e^x
        to time_s e^x, from residuals of the network, of new rank counts, or of new networks.

    Raises
    ------
    ReproError
        A collective is unknown, or a network without measurements has no rate in its name.
    """
    calibrated = read_links() if links is None else links
    time, width = np.empty(len(rows)), np.empty(len(rows))
    for gpu, network in rows[["gpu", "network"]].drop_duplicates().itertuples(index=False):
        at = ((rows.gpu == gpu) & (rows.network == network)).to_numpy()
        chosen = collective_arrays(rows[at])
        entry = calibrated.find(gpu, network)
        if entry is None:
            time[at] = prior_fit(rows[at]).times(chosen).time_s
            width[at] = calibrated.residuals[NEW_NETWORK].half_width
        else:
            times = entry.times(chosen)
            time[at], width[at] = times.time_s, entry.half_widths(chosen, times)
    return pd.DataFrame({"time_s": time, "half_width": width}, index=rows.index)
