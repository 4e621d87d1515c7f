"""Every way to split an open model's training over GPUs, ranked by predicted iteration time."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import OpenModel, open_model, read_open_models
from repro.catalog.reading import choose
from repro.catalog.systems.gpus import Gpu, gpu
from repro.catalog.systems.software_stacks import read_stacks
from repro.errors import ReproError
from repro.predict.blocks import in_blocks
from repro.predict.fused.iteration import Phases, iteration_times_s, predict_phases
from repro.predict.fused.memory import fullest_bytes
from repro.predict.fused.parameters import half_width, read_fused
from repro.predict.fused.run import PRECISIONS, Run, on_device, training_flops
from repro.predict.tables.fused_training import UNEVEN, read_runs, shape_columns
from repro.predict.workload import divisors

# The columns in which plans of a job differ.
SPLIT = ("dtype", "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute")
_PHASES = tuple(one.name for one in fields(Phases))
# Nobody would try more tensor-parallel ranks, more chunks of a stage, longer micro batches, or
# shorter slices of a sequence.
_WIDEST, _MOST_CHUNKS, _MICRO_BATCHES, _SHORTEST_SLICE = 16, 12, (1, 2, 4, 8), 4096
_RECOMPUTE = ("none", "full")
_USUAL = ("bf16", "fp8")
# Nobody has more GPUs than so many times as many.
_MOST_TIMES = 4096


class DoesNotFit(ReproError):
    """No plan fits into the memory of a GPU."""


def best_plans(
    model: str,
    device: str,
    gpus: int,
    global_batch: int,
    *,
    precisions: Sequence[str] | None = None,
    stack: str = "megatron-core",
    expert_imbalance: float | None = None,
    zero_bubble: bool = False,
    count: int = 10,
) -> pd.DataFrame:
    """The plans that fit into memory and have the shortest predicted iterations.

    Tensor-parallel groups stay within a domain of links.

    Parameters
    ----------
    model, device, stack
        Names of `params/open_models.yaml`, `params/gpus.yaml` and `params/stacks.yaml`.
    gpus, global_batch
        Of the job; sequences per iteration.
    precisions
        Of the linear layers, any of `PRECISIONS`; without it, bf16 and fp8 where the GPU has both.
    expert_imbalance
        Tokens of the busiest rank of experts, over the mean; without it even, in wider intervals.
    zero_bubble
        Whether gradients of weights fill the bubbles of pipelines (ZB-H1) of one chunk a stage.
    count
        How many plans, at most.

    Returns
    -------
    DataFrame
        A row per plan, fastest first: `SPLIT`, iteration_time_s with low_s and high_s (90 %),
        tokens_per_s_per_gpu, mfu, memory_bytes with half of what fragmentation may add, `limit`
        (the phase that takes longest beside products), and all phases in seconds.

    Raises
    ------
    ReproError
        A name is unknown, the GPUs cannot be split, or no plan fits.
    """
    entry, where = open_model(model), gpu(device)
    if precisions is None:
        precisions = [name for name in _USUAL if name in where.precisions]
    try:
        table, run = fitting_plans(
            entry,
            where,
            gpus,
            global_batch,
            precisions,
            stack,
            expert_imbalance=expert_imbalance,
            zero_bubble="yes" if zero_bubble else "no",
        )
    except DoesNotFit as error:
        raise DoesNotFit(f"{error}; {would_fit(entry, where, gpus, global_batch)}") from None
    calibrated = read_fused()
    phases = in_blocks(run, lambda rows: vars(predict_phases(rows, calibrated.parameters)))
    seconds = np.sum(list(phases.values()), axis=0)
    best = np.argsort(seconds, kind="stable")[:count]
    chosen = run.rows(best)
    time_s, width = seconds[best], half_width(chosen, calibrated)
    if expert_imbalance is None:
        uneven = replace(chosen, imbalance=np.full_like(chosen.imbalance, UNEVEN))
        longer = iteration_times_s(uneven, calibrated.parameters) / time_s
        width = np.hypot(width, np.log(longer) / 2)
    width = np.exp(width)
    parts = pd.DataFrame({f"{name}_s": phases[name][best] for name in _PHASES})
    tokens = global_batch * entry.shape.seq
    return (
        table.iloc[best][[*SPLIT]]
        .reset_index(drop=True)
        .assign(
            iteration_time_s=time_s,
            low_s=time_s / width,
            high_s=time_s * width,
            tokens_per_s_per_gpu=tokens / time_s / gpus,
            mfu=training_flops(chosen) / (time_s * gpus * chosen.peak_flops),
            memory_bytes=table.memory_bytes.to_numpy()[best],
            limit=[
                max((name for name in _PHASES if name != "products"), key=lambda n: row[f"{n}_s"])
                for _, row in parts.iterrows()
            ],
            **parts,
        )
    )


def by_imbalance(
    model: str, device: str, gpus: int, global_batch: int, ratios: Sequence[float]
) -> pd.DataFrame:
    """The best plan by each ratio of the busiest rank of experts to the mean, `expert_imbalance`,
    which is stated: as `best_plans`."""
    asked = (model, device, gpus, global_batch)
    plans = [best_plans(*asked, expert_imbalance=ratio, count=1) for ratio in ratios]
    return pd.concat(plans, ignore_index=True).assign(expert_imbalance=ratios)


def fitting_plans(
    entry: OpenModel,
    where: Gpu,
    gpus: int,
    global_batch: int,
    precisions: Sequence[str],
    stack: str,
    *,
    zero: Sequence[int] = (1,),
    micro_batches: Sequence[int] = _MICRO_BATCHES,
    **stated: Any,
) -> tuple[pd.DataFrame, Run]:
    """All plans that fit into the memory of a GPU, which need not be one of the catalogue's.

    Parameters
    ----------
    zero
        What replicas may share: 1 the optimizer's states, 3 gradients and weights too, which only
        plans without stages do.
    micro_batches
        Sequences of a forward pass.
    stated
        Other columns of a table of runs, each with one value; None says nothing.

    Returns
    -------
    tuple
        A table with `SPLIT`, `memory_bytes` and what else a row of runs has; and its runs.

    Raises
    ------
    ReproError
        A name is unknown, the GPUs cannot be split, or no plan fits.
    """
    choose("stack", stack, read_stacks())
    for count, what in ((gpus, "gpus"), (global_batch, "global_batch")):
        if count < 1:
            raise ReproError(f"{what} {count}: take 1 or more")
    for name in precisions:
        choose("precision", name, dict.fromkeys(PRECISIONS))
        if name not in where.precisions:
            raise ReproError(
                f"precision {name}: {where.label} has no units for it; it has "
                f"{', '.join(where.precisions)}"
            )
    plans = _plans(entry, where, gpus, global_batch, tuple(precisions), zero, micro_batches)
    if stated.get("zero_bubble") == "yes":
        plans = plans[plans.vpp == 1]
    if plans.empty:
        raise ReproError(
            f"gpus {gpus}: no split suits the {entry.shape.layers} layers and "
            f"{entry.shape.heads} heads of {entry.label} and a batch of {global_batch}; "
            f"make the latter a multiple of {gpus}"
        )
    table = plans.assign(
        gpu=where.label,
        gpus=gpus,
        global_batch=global_batch,
        stack=stack,
        nvlink_domain=where.domain_gpus,
        **shape_columns(entry.shape),
        **stated,
    )
    run = on_device(read_runs(table), where)
    table["memory_bytes"] = fullest_bytes(run)
    fitting = (table.memory_bytes <= where.memory_bytes).to_numpy()
    if not fitting.any():
        raise DoesNotFit(
            f"gpus {gpus}: {entry.label} takes {table.memory_bytes.min() / 1e9:.0f} GB or more of "
            f"each, and {where.label} has {where.memory_bytes / 1e9:.0f} GB"
        )
    return table[fitting], run.rows(fitting)


def would_fit(
    entry: OpenModel, where: Gpu, gpus: int, global_batch: int, zero: Sequence[int] = (1,)
) -> str:
    """What would fit where a model does not: more GPUs of the kind, or the largest other model."""

    def fits(model: OpenModel, times: int) -> bool:
        job = (gpus * times, global_batch * times, ("bf16",), next(iter(read_stacks())))
        try:
            fitting_plans(model, where, *job, zero=zero, micro_batches=(1,))
        except ReproError:
            return False
        return True

    doubled = (2**step for step in range(1, _MOST_TIMES.bit_length()))
    times = next((times for times in doubled if fits(entry, times)), None)
    more = f"{gpus * times} GPUs hold it" if times else "no number of them holds it"
    others = sorted(read_open_models().values(), key=lambda one: -one.parameters)
    largest = next((one.label for one in others if fits(one, 1)), None)
    return f"{more}, and {gpus} hold {largest or 'no model of params/open_models.yaml'}"


def plan_table(best: pd.DataFrame) -> str:
    """What `best_plans` returns, as text: a line per plan."""
    shown = best[[*SPLIT]].assign(
        iteration_s=best.iteration_time_s.map("{:.3g}".format),
        interval_s=[
            f"{low:.3g}-{high:.3g}" for low, high in zip(best.low_s, best.high_s, strict=True)
        ],
        tokens_per_s_per_gpu=best.tokens_per_s_per_gpu.map("{:.0f}".format),
        mfu_pct=(100 * best.mfu).map("{:.0f}".format),
        memory_gb=(best.memory_bytes / 1e9).map("{:.0f}".format),
        limit=best.limit,
    )
    return shown.to_string(index=False)


def _plans(
    entry: OpenModel,
    where: Gpu,
    gpus: int,
    batch: int,
    precisions: tuple[str, ...],
    zero: Sequence[int],
    micro_batches: Sequence[int],
) -> pd.DataFrame:
    shape = entry.shape
    # Models whose layers do not divide may count their two ends as layers.
    stages = np.union1d(divisors(shape.layers), divisors(shape.layers + 2))
    widths = divisors(where.domain_gpus)
    grid = np.meshgrid(
        np.arange(len(precisions)),
        widths[widths <= _WIDEST],
        stages[stages <= gpus],
        divisors(max(shape.seq // _SHORTEST_SLICE, 1)),
        divisors(shape.experts) if shape.experts else [1],
        stages[stages <= _MOST_CHUNKS],
        micro_batches,
        np.arange(len(_RECOMPUTE)),
        zero,
        indexing="ij",
    )
    dtype, tp, pp, cp, ep, vpp, micro_batch, recompute, level = (axis.ravel() for axis in grid)
    chunks = pp * vpp
    held = (gpus % (tp * pp * cp) == 0) & (shape.heads % tp == 0)
    held &= (shape.layers % chunks == 0) | ((shape.layers + 2) % chunks == 0)
    held &= (vpp == 1) | (pp > 1)
    dp = gpus // (tp * pp * cp)
    each = np.maximum(micro_batch * dp, 1)
    held &= (batch % each == 0) & (batch >= each) & ((vpp == 1) | (batch // each % pp == 0))
    held &= (dp * cp * tp) % ep == 0
    held &= (level < 3) | (pp == 1)
    names = np.array(precisions)
    modes = np.array(_RECOMPUTE)
    return pd.DataFrame(
        {
            "dtype": names[dtype[held]],
            "tp": tp[held],
            "pp": pp[held],
            "cp": cp[held],
            "ep": ep[held],
            "dp": dp[held],
            "vpp": vpp[held],
            "micro_batch": micro_batch[held],
            "recompute": modes[recompute[held]],
            "zero": level[held],
            "fsdp": np.where(level[held] == 3, "yes", "no"),
        }
    )
