"""Rates and memory of the testbed by similarity: dimensionless numbers equal those at full scale.

With V bytes to communicate and C seconds to compute, V/(B C) is the time of the network in units of
computing time. The testbed gives its small model a rate B such that this number equals that of the
full-size model on the real cluster.

In data parallelism V is the gradients of a model and half of its experts' exchanges, because rings
send gradients twice. C contains the optimizer's step, as both occur once per iteration. In
pipelines V is the data that one stage sends to the next for one micro batch, and C is its forward
and backward pass.

The memory of an emulated GPU follows in the same way. The memory that model states leave free holds
activations of as many sequences as on the real GPU.
"""

from dataclasses import dataclass, replace

from repro.catalog.models.expert_volumes import ring_and_all_to_all_bytes
from repro.catalog.models.open_models import DecoderShape, OpenModel
from repro.catalog.models.papers import Model
from repro.catalog.models.trainable import AnyShape, Trainable
from repro.catalog.models.volumes import (
    FULL_ELEMENT_BYTES,
    TESTBED_ELEMENT_BYTES,
    gradient_bytes,
    training_flops,
)
from repro.catalog.systems.clusters import Cluster
from repro.predict.step.memory import FRAMEWORK_BYTES, memory, stage_parameters
from repro.predict.workload import Plan, workload

# Above this rate token buckets on two cores are not exact. Buses and NVLink that would be faster
# are emulated at this rate; datasets contain the rates that were set. Where links between nodes
# would be faster, GPUs are slowed instead.
FASTEST_LINK_GBPS = 1.0


@dataclass(frozen=True)
class Similarity:
    """Scales with which one testbed model represents its full-size model.

    Times are of forward and backward compute of `micro_batch_size` sequences on one GPU, and
    without `pipeline` of its optimizer's step, in seconds. Volumes are bytes of gradients or, with
    `pipeline`, of a micro batch's activations between two stages. `mfu` is the fraction of the
    GPU's peak that `compute_full_s` amounts to.
    """

    model: str
    pipeline: bool
    micro_batch_size: int
    mfu: float
    compute_full_s: float
    compute_testbed_s: float
    volume_full_bytes: int
    volume_testbed_bytes: int

    @property
    def time_scale(self) -> float:
        """Testbed seconds that represent one second at full scale, C_t/C_f."""
        return self.compute_testbed_s / self.compute_full_s

    @property
    def rate_scale(self) -> float:
        """Testbed rate that represents one full-scale rate unit, (V_t/V_f) (C_f/C_t)."""
        return self.volume_testbed_bytes / self.volume_full_bytes / self.time_scale

    def slowed(self, times: float) -> "Similarity":
        """Return the similarity with GPUs throttled to take so many times as long."""
        return replace(self, compute_testbed_s=self.compute_testbed_s * times)

    def rates_gbps(self, cluster: Cluster, fabric_gbps: float) -> dict[str, float]:
        """Return the testbed's link rates by level, for `fabric_gbps` between nodes."""
        return emulated_rates_gbps(cluster, fabric_gbps, self.rate_scale)


def emulated_rates_gbps(
    cluster: Cluster, fabric_gbps: float, rate_scale: float
) -> dict[str, float]:
    """Return link rates by level: `rate_scale` times the cluster's, as far as can be emulated.

    The real rate between nodes is `fabric_gbps`.
    """
    levels = cluster.topology.levels
    full = {level.name: level.link_gbps for level in levels[:-1]}
    full[levels[-1].name] = fabric_gbps
    return {name: min(FASTEST_LINK_GBPS, rate * rate_scale) for name, rate in full.items()}


def derive(
    name: str,
    model: Trainable,
    cluster: Cluster,
    *,
    pipeline: bool,
    micro_batch_size: int,
    compute_testbed_s: float,
    compute_full_s: float,
) -> Similarity:
    """Return the similarity of a model on a cluster.

    Parameters
    ----------
    name : str
        The model's name.
    pipeline : bool
        Whether it is trained in pipelines.
    micro_batch_size : int
        Sequences whose computing times are compared.
    compute_testbed_s : float
        Computing time of one micro batch of the testbed model in seconds, measured on one
        uncontended rank with the experiment's CPU share; in data parallelism with the optimizer's
        step.
    compute_full_s : float
        Predicted time of the full-size model on one GPU of the cluster, by the same definition.
    """
    full, testbed = model.full_size(pipeline), model.testbed_size(pipeline)
    flops = training_flops(model.family, full, micro_batch_size)
    volume_full, volume_testbed = (
        _volume_bytes(model, pipeline, micro_batch_size, *size)
        for size in ((full, FULL_ELEMENT_BYTES), (testbed, TESTBED_ELEMENT_BYTES))
    )
    return Similarity(
        model=name,
        pipeline=pipeline,
        micro_batch_size=micro_batch_size,
        mfu=flops / (cluster.device.peak_flops * compute_full_s),
        compute_full_s=compute_full_s,
        compute_testbed_s=compute_testbed_s,
        volume_full_bytes=volume_full,
        volume_testbed_bytes=volume_testbed,
    )


def _volume_bytes(
    model: Trainable, pipeline: bool, micro_batch_size: int, shape: AnyShape, element_bytes: int
) -> int:
    """Return the bytes of a model's gradients, and with experts half of their exchanges.

    In pipelines, return those that a stage sends for one sequence: s h elements, in t5 those of its
    encoder.
    """
    if pipeline:
        return shape.sequence_length * shape.hidden_size * element_bytes
    if isinstance(model, OpenModel) and isinstance(shape, DecoderShape):
        experts = model.expert_parallel
        return round(ring_and_all_to_all_bytes(shape, micro_batch_size, experts, element_bytes))
    return int(gradient_bytes(model.family, shape, element_bytes))


def memory_limit_bytes(
    model: Model,
    cluster: Cluster,
    *,
    pipeline: bool,
    stages: int,
    fixed_bytes: float,
    sequence_bytes: float,
) -> int:
    """Return the bytes that an emulated GPU may allocate for a training run.

    Parameters
    ----------
    stages : int
        Pipeline stages; the first one, which holds most, decides.
    fixed_bytes, sequence_bytes : float
        Measured memory of the whole testbed model on one rank: the part independent of the batch,
        and the part per sequence.

    Returns
    -------
    int
        The testbed model's own fixed part, and memory for as many sequences as the real GPU holds.
        By the memory model, model states and the framework leave the real GPU that memory.
    """
    full, testbed = model.full_size(pipeline), model.testbed_size(pipeline)
    one, two, split = (
        workload(model.family, full, Plan(b * p, b, pipeline_parallel=p)).flat()[0]
        for b, p in ((1, 1), (2, 1), (1, stages))
    )
    per_sequence = float((memory(two).total - memory(one).total)[0])
    room = cluster.device.memory_bytes - FRAMEWORK_BYTES - float(memory(split).states[0])
    whole, part = (
        workload(model.family, testbed, Plan(p, 1, pipeline_parallel=p)).flat()[0]
        for p in (1, stages)
    )
    share = float((stage_parameters(part) / stage_parameters(whole))[0])
    return round(fixed_bytes * share + max(0.0, room) * sequence_bytes / per_sequence)
