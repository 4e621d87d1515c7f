"""Adam on a rank's part of a partition's optimizer states, and the parts that FSDP2 lacks.

FSDP2 gathers weights over the innermost groups and sums gradients there. It cannot shard gradients
wider than weights, and optimizer states wider than gradients. Here gradients are summed further,
over groups of ever more ranks, and stepped weights return by the same route.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import ref

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional

from repro.catalog.parallel.partitions import ShardSizes
from repro.train.partition.collectives import Collectives

_WEIGHT_DECAY = 0.01


@dataclass
class ShardedUnit:
    """Parameters of a unit, sharded by FSDP2, and this rank's shards of its other states.

    `summed` are gradients of the micro batches so far, `master` the weights that are stepped.
    """

    module: FSDPModule
    parameters: Sequence[torch.nn.Parameter]
    sizes: ShardSizes
    summed: torch.Tensor
    master: torch.nn.Parameter
    incoming: torch.Tensor | None = None
    awaited: int = 0
    offsets: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:  # noqa: D105, dataclasses call it
        starts = [0]
        for one in self.parameters:
            starts.append(starts[-1] + padded_part(one))
        self.offsets = tuple(starts)


def padded_part(parameter: torch.nn.Parameter) -> int:
    """Return the elements of a rank's part of a parameter, the same on all ranks."""
    assert isinstance(parameter, DTensor)
    rows = -(-parameter.shape[0] // parameter.device_mesh.size())
    return rows * (parameter.numel() // parameter.shape[0])


class PartitionedOptimizer:
    """Optimizer that sums sharded gradients, clips them, steps, and returns weights to FSDP2.

    Parameters
    ----------
    units
        Units that FSDP2 gathers at once: modules, and their parameters in the unit.
    """

    def __init__(
        self,
        units: Sequence[tuple[FSDPModule, Sequence[torch.nn.Parameter], ShardSizes]],
        collectives: Collectives,
        learning_rate: float,
        gradient_clip: float,
    ) -> None:
        self._collectives, self._clip = collectives, gradient_clip
        self._partition = collectives.partition
        self.units = [self._unit(*unit) for unit in units]
        # Torch keeps a parameter's hooks where no cycle is collected. A hook that holds this object
        # would keep the run, with its groups and threads, until the process ends.
        own = ref(self)
        for number, unit in enumerate(self.units):
            for position, one in enumerate(unit.parameters):
                arrived = partial(_tell, own, number, position)
                one.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
        # Megatron-Core too decays all parameters without another schedule.
        masters = [unit.master for unit in self.units]
        self._adam = torch.optim.AdamW(
            masters, learning_rate, weight_decay=_WEIGHT_DECAY, fused=True
        )

    def _unit(
        self, module: FSDPModule, parameters: Sequence[torch.nn.Parameter], sizes: ShardSizes
    ) -> ShardedUnit:
        summed = torch.zeros(sizes.gradients, device=parameters[0].device)
        unit = ShardedUnit(module, parameters, sizes, summed, torch.nn.Parameter(summed[:0]))
        unit.master = torch.nn.Parameter(self._own(_flat(unit), sizes).float())
        return unit

    def _own(self, flat: torch.Tensor, sizes: ShardSizes) -> torch.Tensor:
        """Return the part of a unit's weights that this rank steps."""
        one, rank = self._partition, dist.get_rank()
        for parts, number, size in (
            (one.gradients // one.weights, rank // one.weights, sizes.gradients),
            (one.optimizer // one.gradients, rank // one.gradients, sizes.optimizer),
        ):
            whole = functional.pad(flat, (0, parts * size - flat.numel()))
            flat = whole.view(parts, size)[number % parts]
        return flat.clone()

    def arrived(self, number: int, position: int, parameter: torch.nn.Parameter) -> None:
        """Take a gradient that FSDP2 has summed; after the last of a unit, sum all further.

        `number` is the unit's, `position` the parameter's among the unit's.
        """
        one, unit = self._partition, self.units[number]
        if unit.incoming is None:
            parts = one.gradients // one.weights
            unit.incoming = torch.zeros(parts * unit.sizes.gradients, device=unit.summed.device)
            unit.awaited = len(unit.parameters)
        assert isinstance(parameter.grad, DTensor)
        part = parameter.grad.to_local().reshape(-1)
        begin = unit.offsets[position]
        unit.incoming[begin : begin + part.numel()] = part
        parameter.grad = None
        unit.awaited -= 1
        if not unit.awaited:
            parts = one.gradients // one.weights
            unit.summed += self._collectives.reduce(unit.incoming, parts, one.weights)
            unit.incoming = None

    def zero_grad(self) -> None:
        """Set the gradients to zero."""
        for unit in self.units:
            unit.summed.zero_()

    def synchronise(self) -> None:
        """Average the gradients that each rank steps over all ranks."""
        one = self._partition
        parts, rest = one.optimizer // one.gradients, one.ranks // one.optimizer
        for unit in self.units:
            whole = functional.pad(
                unit.summed, (0, parts * unit.sizes.optimizer - unit.sizes.gradients)
            )
            gradient = self._collectives.reduce(whole, parts, one.gradients)
            if rest > 1:
                gradient = gradient.clone() if parts == 1 else gradient
                dist.all_reduce(gradient, group=self._collectives.groups[rest, one.optimizer])
            unit.master.grad = gradient / one.ranks

    def step(self) -> None:
        """Clip the gradients by the norm of all of them, step, and return the weights to FSDP2."""
        gradients = [unit.master.grad for unit in self.units if unit.master.grad is not None]
        total = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        holders = self._partition.optimizer
        if holders > 1:
            dist.all_reduce(total, group=self._collectives.groups[holders, 1])
        factor = self._clip / (float(total.sqrt()) + 1e-6)
        if factor < 1:
            for gradient in gradients:
                gradient *= factor
        self._adam.step()
        for unit in self.units:
            self._hand_back(unit)
            unit.master.grad = None

    @torch.no_grad()
    def _hand_back(self, unit: ShardedUnit) -> None:
        one, sizes = self._partition, unit.sizes
        dtype, gather = unit.parameters[0].dtype, self._collectives.gather_updated
        flat = unit.master.detach().to(dtype)
        flat = gather(flat, one.optimizer // one.gradients, one.gradients)[: sizes.gradients]
        flat = gather(flat.contiguous(), one.gradients // one.weights, one.weights)
        # After a validation the gathered weights are old ones.
        unit.module.reshard()
        for parameter, begin in zip(unit.parameters, unit.offsets, strict=False):
            own = _local(parameter)
            own.copy_(flat[begin : begin + own.numel()].view_as(own))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the rank's weights between iterations, without the optimizer's."""
        return sum(
            padded_part(one) * one.element_size() for unit in self.units for one in unit.parameters
        )

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the buffers in which gradients are summed."""
        return sum(unit.summed.nbytes for unit in self.units)

    @property
    def state_bytes(self) -> int:
        """Bytes of the weights that the rank steps, and of Adam's moments."""
        masters = sum(unit.master.nbytes for unit in self.units)
        return masters + self.moment_bytes

    @property
    def moment_bytes(self) -> int:
        """Bytes of Adam's moments."""
        return sum(
            moments[name].nbytes
            for moments in self._adam.state.values()
            for name in ("exp_avg", "exp_avg_sq")
        )


def _tell(
    optimizer: ref[PartitionedOptimizer],
    number: int,
    position: int,
    parameter: torch.nn.Parameter,
) -> None:
    one = optimizer()
    assert one is not None
    one.arrived(number, position, parameter)


@torch.no_grad()
def _flat(unit: ShardedUnit) -> torch.Tensor:
    """Return the rank's parts of a unit's weights, one after another."""
    flat = torch.zeros(unit.offsets[-1], device=unit.summed.device)
    for parameter, begin in zip(unit.parameters, unit.offsets, strict=False):
        own = _local(parameter)
        flat[begin : begin + own.numel()] = own.reshape(-1)
    return flat


def _local(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert isinstance(parameter, DTensor)
    local: torch.Tensor = parameter.to_local()
    return local
