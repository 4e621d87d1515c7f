"""Largest micro batch, context and model that fit in memory, by recomputation and ZeRO stage."""

from dataclasses import dataclass, replace

import pandas as pd

from repro.catalog.job_inputs import Hardware
from repro.catalog.models.hugging_face import ModelFile
from repro.catalog.models.open_models import OpenModel
from repro.catalog.systems.gpus import Gpu
from repro.errors import DoesNotFit
from repro.predict.explore.jobs.fused_plans import (
    SPLIT,
    Training,
    fitting_plans,
    largest_fitting,
)

POLICY = ["recompute", "zero"]
_ZERO = (1, 3)
# Limits of the search: sequences per micro batch, and tokens of a context.
_MOST_SEQUENCES, _MOST_TOKENS = 256, 2**22


def what_fits(
    model: OpenModel | ModelFile,
    where: Hardware,
    gpus: int,
    global_batch: int,
    precision: str = "bf16",
) -> pd.DataFrame:
    """Return the largest micro batch and the longest context of each policy.

    A policy is a recomputation mode and a ZeRO stage, 1 or 3 (ZeRO-0 is never cheaper than ZeRO-1).
    Both limits are over all plans of the job. Micro batches are powers of two. Contexts are the
    model's own times powers of two, with a micro batch of one sequence.

    Parameters
    ----------
    model, where
        As `repro.catalog.job_inputs` reads them.
    gpus, global_batch
        GPUs of the job; sequences per iteration.
    precision
        Precision of linear layers.

    Returns
    -------
    DataFrame
        One row per policy, indexed by `POLICY`, fastest first: micro_batch (sequences) and context
        (tokens) that fit. Of the policy's fastest plan: iteration_time_s, tokens_per_s_per_gpu,
        memory_bytes and `SPLIT`, with its micro batch as plan_micro_batch.

    Raises
    ------
    ReproError
        The GPUs cannot be split, or nothing fits; the message names what would.
    """
    training, device = Training(model, gpus, global_batch, (precision,)), where.device
    sizes = [2**step for step in range(min(_MOST_SEQUENCES, global_batch).bit_length())]
    table = fitting_plans(training, device, zero=_ZERO, micro_batches=sizes, advise=True).table()
    by_policy = table.groupby(POLICY)
    best = table.loc[by_policy.iteration_time_s.idxmin()].set_index(POLICY)
    tokens = global_batch * model.shape.seq
    split = [name for name in SPLIT if name not in ("recompute", "micro_batch")]
    return pd.DataFrame(
        {
            "micro_batch": by_policy.micro_batch.max(),
            "context": _longest(training, device),
            "iteration_time_s": best.iteration_time_s,
            "tokens_per_s_per_gpu": tokens / best.iteration_time_s / gpus,
            "memory_bytes": best.memory_bytes,
            "plan_micro_batch": best.micro_batch,
            **{name: best[name] for name in split},
        }
    ).sort_values("iteration_time_s")


def _longest(training: Training, device: Gpu) -> pd.Series:
    """Return tokens of the longest sequence that fits, by policy.

    Policies are left out if not even the model's own sequences fit with a micro batch of one.
    """
    found: dict[tuple[str, int], int] = {}
    shape = training.model.shape
    while shape.seq <= (shape.positions or _MOST_TOKENS):
        job = replace(training, model=ModelFile(training.model.label, shape))
        try:
            table = fitting_plans(job, device, zero=_ZERO, micro_batches=(1,)).table()
        except DoesNotFit:
            break
        found |= dict.fromkeys(zip(table.recompute, table.zero, strict=True), shape.seq)
        shape = shape.model_copy(update={"seq": 2 * shape.seq})
    return pd.Series(found, dtype="Int64").rename_axis(POLICY)


def fits_table(found: pd.DataFrame) -> str:
    """Format the result of `what_fits` as text, one line per policy."""
    shown = found.assign(
        iteration_s=found.iteration_time_s.map("{:.3g}".format),
        tokens_per_s_per_gpu=found.tokens_per_s_per_gpu.map("{:.0f}".format),
        memory_gb=(found.memory_bytes / 1e9).map("{:.0f}".format),
    )
    shown = shown.drop(columns=["iteration_time_s", "memory_bytes"])
    return shown.reset_index().to_string(index=False)


@dataclass(frozen=True)
class LargestModel:
    """Open model with most parameters that fits, with its fastest recomputation and ZeRO stage."""

    model: str
    recompute: str
    zero: int

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.model}, recompute {self.recompute}, ZeRO-{self.zero}"


def largest_model(
    where: Hardware, gpus: int, global_batch: int, precision: str
) -> LargestModel | None:
    """Return the open model with most parameters that fits; None if none does."""
    found = largest_fitting(where.device, gpus, global_batch, precision, _ZERO)
    if found is None:
        return None
    model, plans = found
    best = plans.fastest(1).table().iloc[0]
    return LargestModel(model.label, str(best.recompute), int(best.zero))
