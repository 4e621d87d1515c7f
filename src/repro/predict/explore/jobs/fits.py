"""What fits into the memory of a job's GPUs, by what is computed again and what replicas share."""

import pandas as pd

from repro.catalog.models.open_models import OpenModel, open_model, read_open_models
from repro.catalog.systems.gpus import Gpu, gpu
from repro.catalog.systems.software_stacks import read_stacks
from repro.errors import ReproError
from repro.predict.explore.jobs.fused_plans import SPLIT, DoesNotFit, fitting_plans, would_fit
from repro.predict.fused.iteration import in_blocks_s
from repro.predict.fused.parameters import read_fused

POLICY = ["recompute", "zero"]
_ZERO = (1, 3)
# Nobody trains with longer micro batches or contexts.
_MOST_SEQUENCES, _MOST_TOKENS = 256, 2**22


def what_fits(
    model: str,
    device: str,
    gpus: int,
    global_batch: int,
    *,
    precision: str = "bf16",
    stack: str = "megatron-core",
) -> pd.DataFrame:
    """The largest micro batch and the longest context of each policy.

    A policy is what backward passes compute again, and what replicas share: with ZeRO-1 the
    optimizer's states, with ZeRO-3 gradients and weights too (ZeRO-0 is never cheaper than the
    former). Both limits are over all splits of the job, micro batches are powers of two, contexts
    the model's own times powers of two with a micro batch of one.

    Parameters
    ----------
    model, device, stack
        Names of `params/open_models.yaml`, `params/gpus.yaml` and `params/stacks.yaml`.
    gpus, global_batch
        Of the job; sequences per iteration.
    precision
        Of the linear layers.

    Returns
    -------
    DataFrame
        By `POLICY`, the cheapest first: micro_batch (sequences) and context (tokens) that fit, and
        of the policy's fastest plan iteration_time_s, tokens_per_s_per_gpu, memory_bytes and
        `SPLIT`, its own micro batch as plan_micro_batch.

    Raises
    ------
    ReproError
        A name is unknown, the GPUs cannot be split, or nothing fits; the message says what would.
    """
    entry, where = open_model(model), gpu(device)
    sizes = [2**step for step in range(min(_MOST_SEQUENCES, global_batch).bit_length())]
    job = (gpus, global_batch, (precision,), stack)
    try:
        table = _timed_plans(entry, where, *job, sizes)
    except DoesNotFit as error:
        instead = would_fit(entry, where, gpus, global_batch, _ZERO)
        raise DoesNotFit(f"{error}; {instead}") from None
    by_policy = table.groupby(POLICY)
    best = table.loc[by_policy.iteration_time_s.idxmin()].set_index(POLICY)
    tokens = global_batch * entry.shape.seq
    split = [name for name in SPLIT if name not in ("recompute", "micro_batch")]
    return pd.DataFrame(
        {
            "micro_batch": by_policy.micro_batch.max(),
            "context": _longest(entry, where, *job),
            "iteration_time_s": best.iteration_time_s,
            "tokens_per_s_per_gpu": tokens / best.iteration_time_s / gpus,
            "memory_bytes": best.memory_bytes,
            "plan_micro_batch": best.micro_batch,
            **{name: best[name] for name in split},
        }
    ).sort_values("iteration_time_s")


def _longest(
    entry: OpenModel,
    where: Gpu,
    gpus: int,
    global_batch: int,
    precisions: tuple[str, ...],
    stack: str,
) -> pd.Series:
    """Tokens of the longest sequence that fits, by policy; missing where even the model's own do
    not with a micro batch of one."""
    found: dict[tuple[str, int], int] = {}
    length = entry.shape.seq
    while length <= _MOST_TOKENS:
        longer = entry.model_copy(update={"shape": entry.shape.model_copy(update={"seq": length})})
        job = (gpus, global_batch, precisions, stack)
        try:
            table, _ = fitting_plans(longer, where, *job, zero=_ZERO, micro_batches=(1,))
        except DoesNotFit:
            break
        found |= {
            (mode, level): length for mode, level in zip(table.recompute, table.zero, strict=True)
        }
        length *= 2
    return pd.Series(found, dtype="Int64").rename_axis(POLICY)


def fits_table(found: pd.DataFrame) -> str:
    """What `what_fits` returns, as text: a line per policy."""
    shown = found.assign(
        iteration_s=found.iteration_time_s.map("{:.3g}".format),
        tokens_per_s_per_gpu=found.tokens_per_s_per_gpu.map("{:.0f}".format),
        memory_gb=(found.memory_bytes / 1e9).map("{:.0f}".format),
    )
    return (
        shown.drop(columns=["iteration_time_s", "memory_bytes"])
        .reset_index()
        .to_string(index=False)
    )


def largest_model(device: str, gpus: int, global_batch: int, precision: str) -> str:
    """The open model with most parameters that fits, and the cheapest policy, in words.

    Raises
    ------
    ReproError
        The GPU is unknown.
    """
    where, stack = gpu(device), next(iter(read_stacks()))
    for entry in sorted(read_open_models().values(), key=lambda one: -one.parameters):
        try:
            table = _timed_plans(entry, where, gpus, global_batch, (precision,), stack, [1])
        except ReproError:
            continue
        best = table.iloc[table.iteration_time_s.argmin()]
        return f"{entry.label}, recompute {best.recompute}, ZeRO-{best.zero}"
    return "none of params/open_models.yaml"


def _timed_plans(
    entry: OpenModel,
    where: Gpu,
    gpus: int,
    global_batch: int,
    precisions: tuple[str, ...],
    stack: str,
    micro_batches: list[int],
) -> pd.DataFrame:
    """All plans of all policies that fit, with iteration_time_s."""
    table, run = fitting_plans(
        entry, where, gpus, global_batch, precisions, stack, zero=_ZERO, micro_batches=micro_batches
    )
    time_s = in_blocks_s(run, read_fused().parameters)
    return table.reset_index(drop=True).assign(iteration_time_s=time_s)
