"""How long one collective takes on one network: a model, its calibration and its interval.

The time of a collective that moves V = factor x S bytes over each rank's link (`bus_factor`) is

    T = launch + hop x steps  +  startup x V / (V + startup_bytes)  +  V / B(ranks, nodes)

Three regimes follow. Small messages cost their latency: a launch, and a hop for each message that
waits for another one (`steps`). In the middle the start-up sets in: messages that outgrow one
buffer of the low-latency protocol go through the pipeline of large buffers, whose handshakes cost
the same whatever the size. Large messages approach the peak: where V is far above `startup_bytes`,
the bus bandwidth is B V / (V + V_half) with V_half = B x (launch + hop x steps + startup).

B has a value for each (ranks, nodes), because it is no smooth function of them: between nodes the
NICs limit it, and inside nodes without a switch it is the number of disjoint rings that the
ranks' links make. Of eight V100 in a hybrid cube mesh, each with six NVLinks, 2, 3, 4, 6, 7 and 8
ranks were measured at 1, 2, 4, 2, 4 and 6 times the 22 GB/s of one link, and 5 ranks at 1.7 times.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from pydantic import PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, read_yaml
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.paths import find
from repro.predict.parameters import Prior, Residuals
from repro.predict.workload import Array

LINKS = "links.yaml"

# What is known of a row's prediction decides which residuals its interval is taken from.
STARTUP, TRANSFER = "mostly start-up", "mostly transfer"
NEW_RANKS, NEW_NETWORK = "new rank count", "new network"

# GB/s in each direction, all NVLinks of a GPU together: data sheets (300, 600, 900 and 1800 GB/s
# in both directions).
_NVLINK_GBPS = {"V100": 150.0, "A100": 300.0, "H100": 450.0, "H200": 450.0, "B200": 900.0}
_RATE = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)\s*Gb", re.IGNORECASE)
# What collectives get of nominal rates. Inside nodes it is wide: one ring or all six of a V100.
NODE_EFFICIENCY = Prior(0.8, 1.0)
FABRIC_EFFICIENCY = Prior(0.85, 0.4)

Cell = tuple[int, int]


class Costs(Entry):
    """What a collective costs beside its transfer.

    launch_s
        Once: kernel launch, first and last synchronisation.
    hop_s
        For each message that waits for another one.
    startup_s, startup_bytes
        What the pipeline of large buffers costs once messages fill it, and the bytes on each
        rank's link at which half of that has set in.
    """

    launch_s: PositiveFloat
    hop_s: PositiveFloat
    startup_s: PositiveFloat
    startup_bytes: PositiveFloat


# Factors of 2 to 3 either way around what published logs of two other machines need (12 V100
# behind switches; two nodes of four GH200). The start-up is that of one node, and between nodes.
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
    """One GPU on one network: costs, peaks, and how far off cross-validation found them to be.

    `residuals` are by what a row mostly is, of rows that a fit has not seen. With fewer than eight
    of them, their `half_width` is at least that of all networks together.
    """

    gpu: str
    network: str
    rows: int
    costs: Costs
    peaks: tuple[BusBandwidth, ...]
    residuals: dict[str, Residuals]

    @property
    def model(self) -> "NetworkModel":
        """What it predicts with."""
        table = {(peak.ranks, peak.nodes): peak.busbw_GBps for peak in self.peaks}
        return NetworkModel(self.gpu, self.network, self.costs, table)


class LinkCalibration(Entry):
    """All calibrated networks. `residuals` are over all of them, each network weighing the same."""

    source: str
    date: str
    residuals: dict[str, Residuals]
    networks: tuple[NetworkCalibration, ...]


def read_links(path: Path | None = None) -> LinkCalibration:
    """Read the calibrated networks, by default of `params/links.yaml`.

    Raises
    ------
    ReproError
        The file is missing or not valid.
    """
    value: LinkCalibration = read_yaml(path or find(f"params/{LINKS}"), LinkCalibration)
    return value


def steps(collective: str, ranks: ArrayLike) -> Array:
    """Messages of a collective that wait for one another.

    NCCL (src/graph/tuning.cc) takes trees for small all-reduces, up and down again: 2 log2 n. The
    others go round a ring, or to each peer: n - 1.
    """
    n = np.asarray(ranks, dtype=float)
    if collective == "all_reduce":
        up_and_down: Array = 2 * np.log2(n)
        return up_and_down
    waiting: Array = np.ones_like(n) if collective == "send_recv" else n - 1
    return waiting


@dataclass(frozen=True)
class Parts:
    """What collectives spend their time on, in seconds: the three regimes."""

    latency: Array
    startup: Array
    transfer: Array

    @property
    def time_s(self) -> Array:
        """All of it."""
        return self.latency + self.startup + self.transfer


@dataclass(frozen=True)
class Cases:
    """Collectives as arrays: bytes on each rank's link, and waiting messages. `which` is each
    row's index in `cells`, the distinct ones."""

    link_bytes: Array
    steps: Array
    cells: tuple[Cell, ...]
    which: Array

    def parts_s(self, bytes_per_s: Array, costs: Costs) -> Parts:
        """The model of the module's docstring."""
        return Parts(
            latency=costs.launch_s + costs.hop_s * self.steps,
            startup=costs.startup_s * (self.link_bytes / (self.link_bytes + costs.startup_bytes)),
            transfer=self.link_bytes / bytes_per_s,
        )


def as_cases(rows: pd.DataFrame) -> Cases:
    """Rows as arrays.

    Raises
    ------
    ReproError
        A collective is unknown, or no number where one is wanted; the message names the row.
    """
    for name in ("size_bytes", "ranks", "nodes"):
        good = (pd.to_numeric(rows[name], errors="coerce") >= 1).to_numpy()
        if not good.all():
            where = int(np.argmin(good))
            raise ReproError(
                f"row {rows.index[where]}: {name} is {rows[name].iloc[where]!r}; "
                "wanted is a number of 1 or more"
            )
    size, ranks, nodes = (
        pd.to_numeric(rows[name]).to_numpy(dtype=float) for name in ("size_bytes", "ranks", "nodes")
    )
    link_bytes, waiting = np.empty(len(rows)), np.empty(len(rows))
    for name in rows.collective.unique():
        at = (rows.collective == name).to_numpy()
        link_bytes[at] = bus_factor(name, ranks[at]) * size[at]
        if name == "all_to_all":
            link_bytes[at] *= _exchange_crowding(ranks[at], nodes[at])
        waiting[at] = steps(name, ranks[at])
    cells, which = np.unique(np.stack([ranks, nodes], axis=1), axis=0, return_inverse=True)
    distinct = tuple((int(n), int(count)) for n, count in cells)
    return Cases(link_bytes, waiting, distinct, which.ravel())


def _exchange_crowding(ranks: Array, nodes: Array) -> Array:
    """How much more an all-to-all puts on a node's NICs than a ring with the same factor.

    A ring leaves a node once. Here each of its g ranks sends (n - g)/n of its bytes to other
    nodes: g (n - g)/n against the (n - 1)/n of `bus_factor`.
    """
    g = ranks / nodes
    return np.where(nodes > 1, g * (ranks - g) / np.maximum(ranks - 1, 1), 1.0)


def peak_prior(gpu: str, network: str, nodes: int) -> Prior | None:
    """Peak bus bandwidth in GB/s that names promise: the GPU's NVLinks inside a node, else the
    first rate in the network's name, of all NICs of a node (`4x200 Gb/s`). None where no name
    does."""
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
    """Of the costs, where up to `nodes` nodes take part."""
    return _PRIORS | ({"startup_s": _FABRIC_STARTUP} if nodes > 1 else {})


@dataclass(frozen=True)
class NetworkModel:
    """Costs, and peaks in GB/s by (ranks, nodes), of a GPU on a network."""

    gpu: str
    network: str
    costs: Costs
    table: Mapping[Cell, float]

    def parts_s(self, cases: Cases) -> Parts:
        """What each spends its time on."""
        bytes_per_s = 1e9 * np.array([self._peak(cell) for cell in cases.cells])[cases.which]
        return cases.parts_s(bytes_per_s, self.costs)

    def time_s(self, cases: Cases) -> tuple[Array, Array]:
        """Times, and whether the transfer is most of each."""
        parts = self.parts_s(cases)
        return parts.time_s, parts.transfer > parts.time_s / 2

    def _peak(self, cell: Cell) -> float:
        """From the table; between its rank counts by interpolation in logarithms, beyond them the
        last one. One node says nothing of several: without any such entry, the prior."""
        if cell in self.table:
            return self.table[cell]
        one_node = cell[1] == 1
        near = sorted((n, rate) for (n, m), rate in self.table.items() if (m == 1) == one_node)
        if near:
            ranks, rates = zip(*near, strict=True)
            return float(np.exp(np.interp(np.log(cell[0]), np.log(ranks), np.log(rates))))
        prior = peak_prior(self.gpu, self.network, cell[1])
        if prior is None:
            raise ReproError(
                f"no measured collective of gpu {self.gpu!r} on network {self.network!r} and "
                f"{'one node' if one_node else 'several nodes'} to predict from; add some to "
                "data/published/collectives_nccl.csv and run `repro calibrate`, or name the rate, "
                "as in '4x200 Gb/s per node'"
            )
        return prior.median


def prior_fit(rows: pd.DataFrame) -> NetworkModel:
    """What is known of a network without any measurement."""
    gpu, network = str(rows.gpu.iloc[0]), str(rows.network.iloc[0])
    priors = cost_priors(int(rows.nodes.max()))
    medians = {name: prior.median for name, prior in priors.items()}
    return NetworkModel(gpu, network, Costs(**medians), {})
