"""Parallel plans of an open model's training with today's software, ranked by iteration time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from repro.catalog.job_inputs import Hardware
from repro.catalog.models.hugging_face import ModelFile
from repro.catalog.models.open_models import OpenModel, read_open_models
from repro.catalog.reading import choose
from repro.catalog.systems.gpus import Gpu
from repro.errors import ReproError
from repro.predict.explore.jobs.search import (
    enumerate_plans,
    fits_memory,
    interval,
    transfer_width,
)
from repro.predict.fused.iteration import iteration_times_s, predict_phases
from repro.predict.fused.memory import fullest_bytes
from repro.predict.fused.parameters import half_width, read_fused
from repro.predict.fused.run import PRECISIONS, Run, decoder_runs, training_flops
from repro.predict.tables.training import UNEVEN
from repro.predict.workload import RECOMPUTE, Array, divisors, in_blocks

# Columns in which the plans of a job differ.
SPLIT = ("dtype", "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute")
# Limits of the search: tensor parallel size, chunks per stage, sequences per micro batch, and
# tokens of a sequence on one context-parallel rank.
_WIDEST, _MOST_CHUNKS, _MICRO_BATCHES, _SHORTEST_SLICE = 16, 12, (1, 2, 4, 8), 4096
_RECOMPUTE = [RECOMPUTE.index(mode) for mode in ("none", "full")]
_STACK = "megatron-core"
_USUAL = ("bf16", "fp8")
# `would_fit` tries up to this many times the GPUs.
_MOST_TIMES = 4096


@dataclass(frozen=True)
class Training:
    """Training job of a model with Megatron-Core.

    `global_batch` is in sequences per iteration, and `precisions` are those that linear layers may
    have.
    """

    model: OpenModel | ModelFile
    gpus: int
    global_batch: int
    precisions: tuple[str, ...] = ("bf16", "fp8", "nvfp4")


@dataclass(frozen=True)
class FittingPlans:
    """Plans that fit in memory, and the peak-memory GPU's bytes of each."""

    run: Run
    memory_bytes: Array

    @cached_property
    def iteration_time_s(self) -> Array:
        """Predicted iteration times, in seconds."""
        time_s: Array = np.sum(list(phases_s(self.run).values()), axis=0)
        return time_s

    def fastest(self, count: int) -> "FittingPlans":
        """Select the `count` plans with the shortest iterations, fastest first."""
        order = np.argsort(self.iteration_time_s, kind="stable")[:count]
        return FittingPlans(self.run.rows(order), self.memory_bytes[order])

    def table(self) -> pd.DataFrame:
        """Return one row per plan: `SPLIT`, zero, memory_bytes and iteration_time_s."""
        run = self.run
        split = {name: getattr(run, name).astype(int) for name in SPLIT[1:]}
        split["recompute"] = np.array(RECOMPUTE)[split["recompute"]]
        return pd.DataFrame(
            {
                "dtype": np.array(PRECISIONS)[run.precision.astype(int)],
                **split,
                "zero": np.where(run.sharded > 0, 3, 1),
                "memory_bytes": self.memory_bytes,
                "iteration_time_s": self.iteration_time_s,
            }
        )


def phases_s(run: Run) -> dict[str, Array]:
    """Predict the phases of iterations, in seconds."""
    parameters = read_fused().parameters
    return in_blocks(run, lambda rows: vars(predict_phases(rows, parameters)))


def best_plans(
    model: OpenModel | ModelFile,
    where: Hardware,
    gpus: int,
    global_batch: int,
    *,
    precisions: Sequence[str] | None = None,
    expert_imbalance: float | None = None,
    zero_bubble: bool = False,
    count: int = 10,
) -> pd.DataFrame:
    """Return the `count` plans that fit in memory and have the shortest predicted iterations.

    Tensor-parallel groups stay within a domain of links.

    Parameters
    ----------
    model, where
        As `repro.catalog.job_inputs` reads them; a GPU of a data sheet has wider intervals.
    gpus, global_batch
        GPUs of the job; sequences per iteration.
    precisions
        Precisions of linear layers, any of `PRECISIONS`. Default: bf16 and fp8, if the GPU has it.
    expert_imbalance
        As in `fitting_plans`. Default: even, with wider intervals.
    zero_bubble
        As in `fitting_plans`.

    Returns
    -------
    DataFrame
        One row per plan, fastest first: `SPLIT`, iteration_time_s with low_s and high_s (90 %),
        tokens_per_s_per_gpu, mfu, memory_bytes with half of what fragmentation may add, `limit`
        (the longest phase except matmuls), and all phases in seconds.

    Raises
    ------
    ReproError
        A precision is unknown, the GPUs cannot be split, or no plan fits.
    """
    if precisions is None:
        precisions = [name for name in _USUAL if name in where.device.precisions]
    found = fitting_plans(
        Training(model, gpus, global_batch, tuple(precisions)),
        where.device,
        expert_imbalance=1.0 if expert_imbalance is None else expert_imbalance,
        zero_bubble=zero_bubble,
        advise=True,
    )
    best, calibrated = found.fastest(count), read_fused()
    phases, time_s = phases_s(best.run), best.iteration_time_s
    width = np.hypot(half_width(best.run, calibrated), transfer_width(where))
    if expert_imbalance is None:
        uneven = replace(best.run, imbalance=np.full_like(time_s, UNEVEN))
        longer = iteration_times_s(uneven, calibrated.parameters) / time_s
        width = np.hypot(width, np.log(longer) / 2)
    others = [name for name in phases if name != "products"]
    longest = np.argmax([phases[name] for name in others], axis=0)
    plans = best.table().drop(columns="zero")
    return plans.assign(
        **interval(time_s, width),
        tokens_per_s_per_gpu=global_batch * model.shape.seq / time_s / gpus,
        mfu=training_flops(best.run) / (time_s * gpus * best.run.peak_flops),
        limit=np.array(others, dtype=object)[longest],
        **{f"{name}_s": seconds for name, seconds in phases.items()},
    )


def by_imbalance(
    model: OpenModel | ModelFile,
    where: Hardware,
    gpus: int,
    global_batch: int,
    ratios: Sequence[float],
) -> pd.DataFrame:
    """Return the best plan at each ratio of the busiest expert-parallel rank to the mean.

    Rows are those of `best_plans`, with the ratio as `expert_imbalance`.
    """
    plans = [
        best_plans(model, where, gpus, global_batch, expert_imbalance=ratio, count=1)
        for ratio in ratios
    ]
    return pd.concat(plans, ignore_index=True).assign(expert_imbalance=ratios)


def fitting_plans(
    training: Training,
    device: Gpu,
    *,
    zero: Sequence[int] = (1,),
    micro_batches: Sequence[int] = _MICRO_BATCHES,
    expert_imbalance: float = 1.0,
    zero_bubble: bool = False,
    advise: bool = False,
) -> FittingPlans:
    """Enumerate all plans that fit in the memory of a GPU, which need not be in the catalogue.

    Parameters
    ----------
    zero
        ZeRO stages, 1 or 3: 1 shards optimizer states, 3 gradients and weights too.
    micro_batches
        Sequences per forward pass.
    expert_imbalance
        Tokens of the busiest expert-parallel rank over the mean.
    zero_bubble
        Whether weight gradients fill pipeline bubbles (ZB-H1), which takes one chunk per stage.
    advise
        Whether the error of a model that does not fit names what would.

    Raises
    ------
    ReproError
        A name is unknown, the GPUs cannot be split, or no plan fits.
    """
    _check(training, device, expert_imbalance)
    shape, gpus, batch = training.model.shape, training.gpus, training.global_batch
    # Models whose layers do not divide may count their two ends as layers.
    stages = np.union1d(divisors(shape.layers), divisors(shape.layers + 2))
    tensor_sizes = divisors(device.domain_gpus)
    plans = enumerate_plans(
        gpus,
        training.model.label,
        widths=(shape.heads,),
        layers=(shape.layers, shape.layers + 2),
        global_batch=batch,
        precision=[PRECISIONS.index(name) for name in training.precisions],
        tp=tensor_sizes[tensor_sizes <= _WIDEST],
        pp=stages[stages <= gpus],
        cp=divisors(max(shape.seq // _SHORTEST_SLICE, 1)),
        ep=divisors(max(shape.experts, 1)),
        vpp=(1,) if zero_bubble else stages[stages <= _MOST_CHUNKS],
        micro_batch=micro_batches,
        recompute=_RECOMPUTE,
        zero=zero,
    )
    run = decoder_runs(
        shape,
        device,
        _STACK,
        **plans.drop(columns="zero"),
        micro_batches=batch / (plans.micro_batch * plans.dp),
        sharded=plans.zero == 3,
        imbalance=expert_imbalance,
        zero_bubble=zero_bubble,
    )
    taken = fullest_bytes(run)
    advice = partial(_would_fit, training, device, zero) if advise else str
    job = f"gpus {gpus}: {training.model.label}"
    fitting = fits_memory(taken, device, job, advice)
    return FittingPlans(run.rows(fitting), taken[fitting])


def _check(training: Training, device: Gpu, imbalance: float) -> None:
    for name, count in (("gpus", training.gpus), ("global_batch", training.global_batch)):
        if count < 1:
            raise ReproError(f"{name} {count}: take 1 or more")
    if imbalance < 1:
        raise ReproError(f"expert_imbalance {imbalance:g}: take 1 (even) or more")
    if imbalance > 1 and not training.model.shape.experts:
        raise ReproError(
            f"expert_imbalance {imbalance:g}: {training.model.label} has no experts; fix: omit it"
        )
    for name in training.precisions:
        choose("precision", name, dict.fromkeys(PRECISIONS))
        if name not in device.precisions:
            raise ReproError(
                f"precision {name}: {device.label} has no units for it; it has "
                f"{', '.join(device.precisions)}"
            )


def _would_fit(training: Training, device: Gpu, zero: Sequence[int]) -> str:
    """Name what would fit: more GPUs of the same kind, or the largest model on these."""
    gpus, batch, half = training.gpus, training.global_batch, ("bf16",)
    times = [2**step for step in range(1, _MOST_TIMES.bit_length())]
    jobs = (Training(training.model, more * gpus, more * batch, half) for more in times)
    more = next((job.gpus for job in jobs if _smallest_plans(job, device, zero)), None)
    enough = f"{more} GPUs hold it" if more else "no number of them holds it"
    largest = largest_fitting(device, gpus, batch, "bf16", zero)
    held = largest[0].label if largest else "no model of params/open_models.yaml"
    return f"{enough}, and {gpus} hold {held}"


def largest_fitting(
    device: Gpu, gpus: int, global_batch: int, precision: str, zero: Sequence[int]
) -> tuple[OpenModel, FittingPlans] | None:
    """Find the open model with most parameters that fits, and its plans; None if none fits.

    Micro batches have one sequence.
    """
    for model in sorted(read_open_models().values(), key=lambda one: -one.parameters):
        job = Training(model, gpus, global_batch, (precision,))
        if found := _smallest_plans(job, device, zero):
            return model, found
    return None


def _smallest_plans(job: Training, device: Gpu, zero: Sequence[int]) -> FittingPlans | None:
    """Return the plans with micro batches of one sequence, or None if none fits."""
    try:
        return fitting_plans(job, device, zero=zero, micro_batches=(1,))
    except ReproError:
        return None


def plan_table(best: pd.DataFrame) -> str:
    """Format the result of `best_plans` as text, one line per plan."""
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
