"""Search over parallel plans: enumeration, fit in memory, and ranking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from repro.catalog.systems.gpus import Gpu
from repro.errors import ReproError
from repro.predict.workload import Array


class DoesNotFit(ReproError):
    """No plan fits in the memory of a GPU."""


@dataclass(frozen=True)
class Plans:
    """Parallel plans as integer arrays of one length.

    `tp`, `pp`, `cp`, `ep` and `dp` are parallel sizes, `vpp` model chunks per pipeline stage,
    `micro_batch` sequences per forward pass, `recompute` an index in `RECOMPUTE`, `precision` an
    index in the precisions of the caller's model, and `zero` the ZeRO stage.
    """

    precision: Array
    tp: Array
    pp: Array
    cp: Array
    ep: Array
    vpp: Array
    micro_batch: Array
    recompute: Array
    zero: Array
    dp: Array

    def rows(self, chosen: Array) -> "Plans":
        """Select some of the plans."""
        return Plans(*(getattr(self, one.name)[chosen] for one in fields(self)))


def enumerate_plans(
    gpus: int,
    label: str,
    *,
    widths: Sequence[int],
    layers: Sequence[int] = (),
    global_batch: int | None = None,
    precision: ArrayLike = (0,),
    tp: ArrayLike,
    pp: ArrayLike,
    cp: ArrayLike = (1,),
    ep: ArrayLike = (1,),
    vpp: ArrayLike = (1,),
    micro_batch: ArrayLike,
    recompute: ArrayLike = (0,),
    zero: ArrayLike = (1,),
) -> Plans:
    """Enumerate the plans that divide a model, its batch and the GPUs without remainder.

    Parameters
    ----------
    gpus, label
        GPUs of the job; the model's name in error messages.
    widths
        Numbers that `tp` must divide, heads first.
    layers
        Layer counts of which `pp` x `vpp` must divide one; empty if stages may be uneven.
    global_batch
        Sequences per iteration, which replicas process in equal numbers of micro batches; None
        for no such limit.
    precision, tp, pp, cp, ep, vpp, micro_batch, recompute, zero
        Choices for each field of `Plans`; the last one varies fastest.

    Raises
    ------
    ReproError
        No plan divides the job.
    """
    axes = (precision, tp, pp, cp, ep, vpp, micro_batch, recompute, zero)
    grid = [axis.ravel() for axis in np.meshgrid(*map(np.asarray, axes), indexing="ij")]
    grid.append(gpus // np.prod(grid[1:4], axis=0))
    every = Plans(*grid)
    # Experts are spread over the ranks of one stage.
    stage = every.dp * every.cp * every.tp
    divides = (stage * every.pp == gpus) & (stage % every.ep == 0)
    for width in widths:
        divides &= width % every.tp == 0
    chunks = every.pp * every.vpp
    if layers:
        divides &= np.any([count % chunks == 0 for count in layers], axis=0)
    divides &= (every.vpp == 1) | (every.pp > 1)
    if global_batch is not None:
        each = np.maximum(every.micro_batch * every.dp, 1)
        divides &= global_batch % each == 0
        divides &= (every.vpp == 1) | (global_batch // each % every.pp == 0)
    # ZeRO-3 is used without pipeline stages.
    divides &= (every.zero < 3) | (every.pp == 1)
    if not divides.any():
        raise ReproError(
            f"gpus {gpus}: no split suits the {next(iter(layers), 'any')} layers and {widths[0]} "
            f"heads of {label} and a batch of {global_batch}; make the latter a multiple of {gpus}"
        )
    return every.rows(divides)


def fits_memory(
    memory_bytes: Array,
    device: Gpu,
    job: str,
    *,
    advice: str | Callable[[], str] = "",
    decimals: int = 0,
) -> Array:
    """Mark the plans whose peak-memory GPU has enough memory.

    Raises
    ------
    DoesNotFit
        No plan of the `job` fits; the message ends with the advice and has gigabytes with so many
        `decimals`.
    """
    fitting: Array = memory_bytes <= device.memory_bytes
    if not fitting.any():
        needed, there = (
            f"{size / 1e9:.{decimals}f} GB" for size in (memory_bytes.min(), device.memory_bytes)
        )
        then = advice if isinstance(advice, str) else advice()
        raise DoesNotFit(
            f"{job} takes {needed} or more of each, and {device.label} has {there}"
            f"{then and '; '}{then}"
        )
    return fitting


def interval(time_s: Any, half_width: Any) -> dict[str, Any]:
    """Return the ends of a time's interval, given half of the interval of its logarithm."""
    width = np.exp(half_width)
    return {"low_s": time_s / width, "high_s": time_s * width}


def pareto(costs: Array) -> Array:
    """Mark the Pareto-optimal rows of costs (choice, cost): no other row is as good and better."""
    optimal = np.zeros(len(costs), dtype=bool)
    left = np.lexsort(costs.T[::-1])
    if costs.shape[1] == 2:
        # Drops most rows at once, which matters for a million designs.
        second = costs[left, 1]
        left = left[second <= np.minimum.accumulate(second)]
    while left.size:
        # Nothing left is better than the first, which beats or equals what is less in no cost.
        first = costs[left[0]]
        optimal[left[(costs[left] == first).all(axis=1)]] = True
        left = left[(costs[left] < first).any(axis=1)]
    return optimal
