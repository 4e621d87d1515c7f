"""Search over parallel plans: enumeration, fit in memory, and ranking."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.job_inputs import Hardware
from repro.catalog.systems.gpus import Gpu
from repro.errors import DoesNotFit, ReproError
from repro.predict.parameters import TRANSFER
from repro.predict.workload import Array

_COLUMNS = ("precision", "tp", "pp", "cp", "ep", "vpp", "micro_batch", "recompute", "zero")


def enumerate_plans(
    gpus: int,
    label: str,
    *,
    widths: Sequence[int],
    layers: Sequence[int] = (),
    global_batch: int | None = None,
    **choices: Iterable[Any],
) -> pd.DataFrame:
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
    choices
        Choices of each column; a column has 1 without any.

    Returns
    -------
    DataFrame
        One row per plan: precision and recompute; parallel sizes tp, pp, cp, ep and dp; vpp, model
        chunks per pipeline stage; micro_batch, sequences per forward pass; zero, the ZeRO stage.

    Raises
    ------
    ReproError
        No plan divides the job.
    """
    axes = dict.fromkeys(_COLUMNS, (1,)) | choices
    grid = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
    plans = grid.to_frame(index=False)
    plans["dp"] = gpus // (plans.tp * plans.pp * plans.cp)
    # Experts are spread over the ranks of one stage.
    stage = plans.dp * plans.cp * plans.tp
    divides = (stage * plans.pp == gpus) & (stage % plans.ep == 0)
    for width in widths:
        divides &= width % plans.tp == 0
    chunks = plans.pp * plans.vpp
    if layers:
        divides &= np.any([count % chunks == 0 for count in layers], axis=0)
    divides &= (plans.vpp == 1) | (plans.pp > 1)
    if global_batch is not None:
        each = (plans.micro_batch * plans.dp).clip(1)
        divides &= global_batch % each == 0
        divides &= (plans.vpp == 1) | (global_batch // each % plans.pp == 0)
    # ZeRO-3 is used without pipeline stages.
    divides &= (plans.zero < 3) | (plans.pp == 1)
    if not divides.any():
        raise ReproError(
            f"gpus {gpus}: no split suits the {next(iter(layers), 'any')} layers and {widths[0]} "
            f"heads of {label} and a batch of {global_batch}; make the latter a multiple of {gpus}"
        )
    return plans.loc[divides].reset_index(drop=True)


def fits_memory(
    memory_bytes: Array, device: Gpu, job: str, advice: Callable[[], str] = str
) -> Array:
    """Mark the plans whose peak-memory GPU has enough memory.

    Raises
    ------
    DoesNotFit
        No plan of the `job` fits; the message ends with the advice.
    """
    fitting: Array = memory_bytes <= device.memory_bytes
    if not fitting.any():
        then = advice()
        raise DoesNotFit(
            f"{job} takes {memory_bytes.min() / 1e9:.0f} GB or more of each, and {device.label} "
            f"has {device.memory_bytes / 1e9:.0f} GB{then and '; '}{then}"
        )
    return fitting


def interval(time_s: Any, half_width: Any) -> dict[str, Any]:
    """Return the ends of a time's interval, given half of the interval of its logarithm."""
    width = np.exp(half_width)
    return {"low_s": time_s / width, "high_s": time_s * width}


def transfer_width(where: Hardware) -> float:
    """Return what a GPU of a data sheet adds to half of the interval of ln(time)."""
    return 0.0 if where.known else TRANSFER


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
