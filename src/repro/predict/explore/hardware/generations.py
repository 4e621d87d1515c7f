"""Speed-up from one GPU to another at training, by part: computing, memory, links and more.

Parts of the newer GPU replace parts of the older one in all combinations, and the fastest plan is
searched for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import factorial

import numpy as np
import pandas as pd

from repro.catalog.systems.gpus import Gpu, gpu
from repro.predict.explore.jobs.fused_plans import SPLIT, Training, fitting_plans
from repro.predict.explore.jobs.search import DoesNotFit
from repro.predict.fused.parameters import half_width, read_fused

# Fields of a GPU by part. The part `precision` is the units below half precision, relative to
# those for half precision.
PARTS: Mapping[str, tuple[str, ...]] = {
    "computing": ("peak_flops", "multiprocessors", "generation"),
    "precision": (),
    "memory": ("memory_gbytes_per_s", "memory_gb"),
    "links": ("link_gbytes_per_s", "domain_gpus"),
    "network": ("nic_gbps",),
}


def fastest(training: Training, device: Gpu) -> pd.Series:
    """Search the fastest plan on a GPU, which need not be in the catalogue.

    Returns
    -------
    Series
        `SPLIT`, iteration_time_s and half_width, half of the 90 % interval of the time's logarithm.

    Raises
    ------
    ReproError
        A name is unknown, the GPUs cannot be split, or no plan fits.
    """
    has = tuple(name for name in training.precisions if name in device.precisions)
    found = fitting_plans(replace(training, precisions=has or training.precisions), device)
    best = found.fastest(1)
    width = half_width(best.run, read_fused())
    timed = best.table().assign(iteration_time_s=best.iteration_time_s, half_width=width)
    return timed.drop(columns="zero").iloc[0]


def hybrid(old: Gpu, new: Gpu, parts: frozenset[str]) -> Gpu:
    """Replace some `PARTS` of the older GPU by those of the newer one."""
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
    """Divide the speed-up from one GPU to another among parts.

    The gain of a part depends on the parts replaced before. `factor` is its geometric mean over all
    orders of replacement (Shapley, 1953), so the factors' product is the whole speed-up.

    Returns
    -------
    DataFrame
        One row per part, in the order of `PARTS`: factor; least and most over all orders; first
        (only this part replaced) and last (all other parts replaced before).
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
        # Sets are sorted by size: the first is empty, the last has all other parts.
        rows[name] = np.exp(
            [np.average(gains, weights=weights), gains.min(), gains.max(), gains[0], gains[-1]]
        )
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["factor", "least", "most", "first", "last"]
    )


def generations(training: Training, names: Sequence[str]) -> pd.DataFrame:
    """Search the fastest iteration on each GPU of the catalogue that can hold the model.

    Returns
    -------
    DataFrame
        One row per GPU: `SPLIT`, iteration_time_s with low_s and high_s (90 %), and times_as_fast
        relative to the first row.
    """
    rows = {}
    for name in names:
        try:
            found = fastest(training, gpu(name))
        except DoesNotFit:
            continue
        width = np.exp(found.half_width)
        rows[gpu(name).label] = {
            **found[[*SPLIT]],
            "iteration_time_s": found.iteration_time_s,
            "low_s": found.iteration_time_s / width,
            "high_s": found.iteration_time_s * width,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.assign(times_as_fast=table.iteration_time_s.iloc[0] / table.iteration_time_s)


def more_gpus(
    training: Training, old: Gpu, new: Gpu, times: Sequence[int] = (1, 2, 4, 8)
) -> pd.DataFrame:
    """Return the speed-up by a newer GPU, with the same number of GPUs and with more.

    Returns
    -------
    DataFrame
        One row per entry of `times`, the factor of GPUs: gpus, times_as_fast with low and high
        (90 %, residuals of both GPUs in quadrature).
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
