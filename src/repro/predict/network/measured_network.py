"""The network that a cluster's own collectives were measured on, for its data parallelism."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from repro.catalog.clusters import Cluster
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.predict.network.links import STARTUP, TRANSFER, Cases, NetworkModel, read_links, steps
from repro.predict.parameters import Residuals
from repro.predict.workload import Array


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
            model = NetworkModel(entry.gpu, entry.network, entry.costs, entry.table)
            return MeasuredNetwork(model, links.residuals | entry.residuals)
    raise ReproError(
        f"{cluster.label}: params/links.yaml has no network {cluster.network!r} of GPU {gpu!r}; "
        "measure it and run `repro calibrate` with these two names and its --log"
    )
