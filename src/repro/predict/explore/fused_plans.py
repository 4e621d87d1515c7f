"""Every way to split an open model's training over GPUs, ranked by predicted iteration time."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pandas as pd

from repro.catalog.gpus import Gpu, gpu
from repro.catalog.open_models import OpenModel, open_model
from repro.catalog.reading import choose
from repro.catalog.stacks import read_stacks
from repro.errors import ReproError
from repro.predict.blocks import in_blocks
from repro.predict.fused.iteration import Phases, predict_phases
from repro.predict.fused.memory import FRAGMENTATION, memory
from repro.predict.fused.parameters import half_width, read_fused
from repro.predict.fused.reading import read_runs, shape_columns
from repro.predict.fused.run import PRECISIONS, Run, on_device, training_flops
from repro.predict.workload import divisors

# The columns in which plans of a job differ.
SPLIT = ("dtype", "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute")
_PHASES = tuple(one.name for one in fields(Phases))
# Nobody would try more tensor-parallel ranks, more chunks of a stage, longer micro batches, or
# shorter slices of a sequence.
_WIDEST, _MOST_CHUNKS, _MICRO_BATCHES, _SHORTEST_SLICE = 16, 12, (1, 2, 4, 8), 4096
_RECOMPUTE = ("none", "full")


class DoesNotFit(ReproError):
    """No plan fits into the memory of a GPU."""


def best_plans(
    model: str,
    device: str,
    gpus: int,
    global_batch: int,
    *,
    precisions: Sequence[str] = ("bf16", "fp8"),
    stack: str = "megatron-core",
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
        Of the linear layers, any of `PRECISIONS`.
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
    table, run = fitting_plans(entry, where, gpus, global_batch, precisions, stack)
    calibrated = read_fused()
    phases = in_blocks(run, lambda rows: vars(predict_phases(rows, calibrated.parameters)))
    seconds = np.sum(list(phases.values()), axis=0)
    best = np.argsort(seconds, kind="stable")[:count]
    chosen = run.rows(best)
    width = np.exp(half_width(chosen, calibrated))
    time_s = seconds[best]
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


def fitting_plans(
    entry: OpenModel,
    where: Gpu,
    gpus: int,
    global_batch: int,
    precisions: Sequence[str],
    stack: str,
) -> tuple[pd.DataFrame, Run]:
    """All plans that fit into the memory of a GPU, which need not be one of the catalogue's.

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
    for name in precisions:
        choose("precision", name, dict.fromkeys(PRECISIONS))
    plans = _plans(entry, where, gpus, global_batch, tuple(precisions))
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
    )
    run = on_device(read_runs(table), where)
    table["memory_bytes"] = memory(run).total * (1 + FRAGMENTATION / 2)
    fitting = (table.memory_bytes <= 1e9 * where.memory_gb).to_numpy()
    if not fitting.any():
        raise DoesNotFit(
            f"gpus {gpus}: {entry.label} takes {table.memory_bytes.min() / 1e9:.0f} GB or more of "
            f"each, and {where.label} has {where.memory_gb:g} GB; take more GPUs"
        )
    return table[fitting], run.rows(fitting)


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
    entry: OpenModel, where: Gpu, gpus: int, batch: int, precisions: tuple[str, ...]
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
        _MICRO_BATCHES,
        np.arange(len(_RECOMPUTE)),
        indexing="ij",
    )
    dtype, tp, pp, cp, ep, vpp, micro_batch, recompute = (axis.ravel() for axis in grid)
    chunks = pp * vpp
    held = (gpus % (tp * pp * cp) == 0) & (shape.heads % tp == 0)
    held &= (shape.layers % chunks == 0) | ((shape.layers + 2) % chunks == 0)
    held &= (vpp == 1) | (pp > 1)
    dp = gpus // (tp * pp * cp)
    each = np.maximum(micro_batch * dp, 1)
    held &= (batch % each == 0) & (batch >= each) & ((vpp == 1) | (batch // each % pp == 0))
    held &= (dp * cp * tp) % ep == 0
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
        }
    )
