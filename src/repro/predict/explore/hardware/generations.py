"""What makes one GPU faster than another at training: computing, precision, memory, links, network.

Parts of the newer GPU are put into the older one, in all combinations, and the fastest plan is
searched for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import factorial

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import OpenModel
from repro.catalog.systems.gpus import Gpu, gpu
from repro.predict.explore.jobs.fused_plans import SPLIT, DoesNotFit, fitting_plans
from repro.predict.fused.iteration import in_blocks_s
from repro.predict.fused.parameters import half_width, read_fused

# What of a newer GPU replaces what of an older one. Precision is that of linear layers: units below
# half precision, as many times as fast as those for it.
PARTS: Mapping[str, tuple[str, ...]] = {
    "computing": ("peak_flops", "multiprocessors", "generation"),
    "precision": (),
    "memory": ("memory_gbytes_per_s", "memory_gb"),
    "links": ("link_gbytes_per_s", "domain_gpus"),
    "network": ("nic_gbps",),
}


@dataclass(frozen=True)
class Training:
    """A model, the GPUs that train it, the sequences of an iteration, and the software.

    `precisions` are what linear layers may have where a GPU has units for them.
    """

    model: OpenModel
    gpus: int
    global_batch: int
    precisions: tuple[str, ...] = ("bf16", "fp8", "nvfp4")
    stack: str = "megatron-core"


@dataclass(frozen=True)
class Fastest:
    """The plan with the shortest predicted iteration of those that fit, in seconds, with half of
    the 90 % interval of its logarithm."""

    plan: pd.Series
    iteration_time_s: float
    half_width: float


def fastest(training: Training, device: Gpu) -> Fastest:
    """The fastest plan on a GPU, which need not exist.

    Raises
    ------
    ReproError
        A name is unknown, the GPUs cannot be split, or no plan fits.
    """
    has = [name for name in training.precisions if name in device.precisions]
    table, run = fitting_plans(
        training.model,
        device,
        training.gpus,
        training.global_batch,
        has or training.precisions,
        training.stack,
    )
    calibrated = read_fused()
    time_s = in_blocks_s(run, calibrated.parameters)
    best = int(np.argmin(time_s))
    return Fastest(
        plan=table[[*SPLIT]].iloc[best],
        iteration_time_s=float(time_s[best]),
        half_width=float(half_width(run.rows(slice(best, best + 1)), calibrated)[0]),
    )


def hybrid(old: Gpu, new: Gpu, parts: frozenset[str]) -> Gpu:
    """The older GPU with some `PARTS` of the newer one."""
    fields = chain.from_iterable(PARTS[part] for part in parts)
    made = old.model_copy(update={field: getattr(new, field) for field in fields})
    units = new if "precision" in parts else old
    ratio = made.peak_flops / units.peak_flops
    return made.model_copy(
        update={
            "fp8_flops": units.fp8_flops and units.fp8_flops * ratio,
            "fp4_flops": units.fp4_flops and units.fp4_flops * ratio,
        }
    )


def speed_up_by_part(training: Training, old: Gpu, new: Gpu) -> pd.DataFrame:
    """By how much each part of a newer GPU shortens an iteration.

    What a part gives depends on which others are there already. `factor` is its geometric mean over
    all orders in which parts can be replaced (Shapley, 1953), so that the factors' product is the
    whole speed-up; `least` and `most` are over these orders.

    Returns
    -------
    DataFrame
        A row per part, in the order of `PARTS`: factor, least, most, first (it alone, in the older
        GPU) and last (it alone missing in the newer one).
    """
    names = list(PARTS)
    sets = [frozenset(s) for k in range(len(names) + 1) for s in combinations(names, k)]
    logarithm = {
        parts: -np.log(fastest(training, hybrid(old, new, parts)).iteration_time_s)
        for parts in sets
    }
    rows = {}
    for name in names:
        without = [parts for parts in sets if name not in parts]
        gains = np.array([logarithm[parts | {name}] - logarithm[parts] for parts in without])
        others = len(names) - 1
        weights = [factorial(len(s)) * factorial(others - len(s)) for s in without]
        # By how many parts are there already: none comes first, all come last.
        rows[name] = np.exp(
            [np.average(gains, weights=weights), gains.min(), gains.max(), gains[0], gains[-1]]
        )
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["factor", "least", "most", "first", "last"]
    )


def generations(training: Training, names: Sequence[str]) -> pd.DataFrame:
    """The fastest iteration on GPUs of the catalogue, those with the memory for it.

    Returns
    -------
    DataFrame
        A row per GPU: `SPLIT`, iteration_time_s with low_s and high_s (90 %), and times_as_fast as
        the first of them that holds the model.
    """
    rows = {}
    for name in names:
        try:
            found = fastest(training, gpu(name))
        except DoesNotFit:
            continue
        width = np.exp(found.half_width)
        rows[gpu(name).label] = {
            **found.plan,
            "iteration_time_s": found.iteration_time_s,
            "low_s": found.iteration_time_s / width,
            "high_s": found.iteration_time_s * width,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.assign(times_as_fast=table.iteration_time_s.iloc[0] / table.iteration_time_s)


def more_gpus(
    training: Training, old: Gpu, new: Gpu, times: Sequence[int] = (1, 2, 4, 8)
) -> pd.DataFrame:
    """How much faster the newer GPU trains the same model and batch, with as many and with more.

    Returns
    -------
    DataFrame
        By the newer GPUs for each older one: gpus, times_as_fast with low and high (90 %, the
        residuals of both GPUs in quadrature).
    """
    before = fastest(training, old)
    rows = {}
    for more in times:
        after = fastest(replace(training, gpus=training.gpus * more), new)
        ratio = before.iteration_time_s / after.iteration_time_s
        width = np.exp(np.hypot(before.half_width, after.half_width))
        rows[more] = {
            "gpus": training.gpus * more,
            "times_as_fast": ratio,
            "low": ratio / width,
            "high": ratio * width,
        }
    return pd.DataFrame.from_dict(rows, orient="index")
