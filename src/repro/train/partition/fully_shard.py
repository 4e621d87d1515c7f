"""Sharding of a model across a partition's groups with FSDP2, as far as FSDP2 supports it.

FSDP2's `fully_shard` frees a layer's weights after each pass and gathers them before the next. It
sums gradients over the same groups, and with a number for `reshard_after_forward` keeps a second
copy in smaller groups (hpZ). It can neither quantise nor shard gradients or optimizer states wider
than weights: `repro.train.partition.optimizer` and `.collectives` do.
"""

import torch
from megatron.core.timers import Timers
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from repro.catalog.parallel.partitions import Partition, Unit, shard_sizes
from repro.errors import ReproError
from repro.train.compression.coder import Coder
from repro.train.partition.collectives import Collectives, FsdpAllGather, FsdpReduceScatter
from repro.train.partition.groups import join_partition
from repro.train.partition.optimizer import PartitionedOptimizer
from repro.train.records import TrainingRun


def check_partition(run: TrainingRun, ranks: int) -> None:
    """Check that a run's states can be sharded as its partition says.

    Raises
    ------
    ReproError
        They cannot be sharded so; the message has the fix.
    """
    if run.partition is None:
        return
    run.partition.checked()
    if run.partition.ranks != ranks:
        raise ReproError(f"the partition is of {run.partition.ranks} ranks; there are {ranks}")
    for name, value, wanted in (
        ("pipeline_parallel", run.pipeline_parallel, 1),
        ("tensor_parallel", run.tensor_parallel, 1),
        ("expert_parallel", run.expert_parallel, 1),
        ("distributed_optimizer", run.distributed_optimizer, False),
        ("save_every", run.save_every, 0),
        ("precision", run.precision, "fp32"),
    ):
        if value != wanted:
            raise ReproError(
                f"{name} is {value}, not allowed with a partition of weights, gradients and "
                f"optimizer states; fix: {wanted}"
            )


def partitioned(
    module: MegatronModule,
    partition: Partition,
    timers: Timers,
    learning_rate: float,
    gradient_clip: float,
    coder: Coder | None = None,
) -> PartitionedOptimizer:
    """Shard a model that every rank has in place, and return the optimizer with the other states.

    `coder` encodes weights that are gathered for a pass.
    """
    collectives = Collectives(partition, join_partition(partition), timers, coder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = DeviceMesh.from_group(collectives.groups[partition.weights, 1], device)
    layers = [one for one in module.modules() if isinstance(one, TransformerLayer)]
    units, seen = [], set[int]()
    for part in (*layers, module):
        # The root's weights stay between its forward and backward pass, which are consecutive.
        again = (partition.secondary or True) if part is not module else None
        sharded = fully_shard(part, mesh=mesh, reshard_after_forward=again)
        sharded.set_force_sum_reduction_for_comms(True)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_custom_all_gather(FsdpAllGather(collectives))
        sharded.set_custom_reduce_scatter(FsdpReduceScatter(collectives))
        parameters = [one for one in part.parameters() if id(one) not in seen]
        seen.update(map(id, parameters))
        unit = Unit(tuple((one.shape[0], one.numel()) for one in parameters))
        units.append((sharded, parameters, shard_sizes(partition, unit)))
    return PartitionedOptimizer(units, collectives, learning_rate, gradient_clip)
