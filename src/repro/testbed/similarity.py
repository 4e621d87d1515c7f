"""Derive the testbed's link rates: the same communication-to-computation ratio as at full scale.

With V bytes of gradients and C seconds of computation per iteration, the number V/(B C) says how
long the network needs in units of computing time. The testbed gives its small model a rate B such
that the number equals that of the full-size model on the real cluster.
"""

from dataclasses import dataclass

from repro.catalog.clusters import Cluster
from repro.catalog.models import Model
from repro.predict.volumes import gradient_bytes, training_flops

# Micro batch, in sequences per GPU, at which computing times are compared: that of weak scaling.
REFERENCE_MICRO_BATCH = 4
# The papers' Megatron-LM reduces fp16 gradients; the testbed trains in fp32.
FULL_GRADIENT_BYTES, TESTBED_GRADIENT_BYTES = 2, 4


@dataclass(frozen=True)
class Similarity:
    """How one testbed model stands for its full-size model.

    Times are of forward and backward compute of `REFERENCE_MICRO_BATCH` sequences on one GPU, in
    seconds; volumes are gradient bytes. `mfu` is the fraction of the GPU's peak that
    `compute_full_s` amounts to.
    """

    model: str
    mfu: float
    compute_full_s: float
    compute_testbed_s: float
    volume_full_bytes: int
    volume_testbed_bytes: int

    @property
    def time_scale(self) -> float:
        """Testbed seconds that stand for one second at full scale, C_t/C_f."""
        return self.compute_testbed_s / self.compute_full_s

    @property
    def rate_scale(self) -> float:
        """Testbed rate that stands for one full-scale rate unit, (V_t/V_f) (C_f/C_t)."""
        return self.volume_testbed_bytes / self.volume_full_bytes / self.time_scale

    def rates_gbps(self, cluster: Cluster, fabric_gbps: float) -> dict[str, float]:
        """The testbed's link rates by level, for a protocol of `fabric_gbps` between nodes."""
        levels = cluster.topology.levels
        full = {level.name: level.link_gbps for level in levels[:-1]}
        full[levels[-1].name] = fabric_gbps
        return {name: rate * self.rate_scale for name, rate in full.items()}


def derive(
    name: str, model: Model, cluster: Cluster, compute_testbed_s: float, compute_full_s: float
) -> Similarity:
    """The similarity of a model on a cluster.

    Parameters
    ----------
    name : str
        The model's name.
    compute_testbed_s : float
        Forward plus backward compute time of the testbed model, measured on one uncontended rank
        under the experiment's quota, in seconds.
    compute_full_s : float
        The same of the full-size model on one GPU of the cluster, predicted.
    """
    flops = training_flops(model.family, model.full, REFERENCE_MICRO_BATCH)
    return Similarity(
        model=name,
        mfu=flops / (cluster.device.peak_flops * compute_full_s),
        compute_full_s=compute_full_s,
        compute_testbed_s=compute_testbed_s,
        volume_full_bytes=gradient_bytes(model.family, model.full, FULL_GRADIENT_BYTES),
        volume_testbed_bytes=gradient_bytes(model.family, model.testbed, TESTBED_GRADIENT_BYTES),
    )
