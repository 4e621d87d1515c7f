"""Plans that serve a model on some GPUs: latency, throughput, and the bound of each operator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.job_inputs import Hardware
from repro.catalog.models.hugging_face import ModelFile
from repro.catalog.models.open_models import OpenModel
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.technology import MemoryKind
from repro.errors import ReproError
from repro.predict.explore.jobs.search import enumerate_plans, interval, pareto, transfer_width
from repro.predict.serving.forward import bound
from repro.predict.serving.latency import latency, part_s, passes
from repro.predict.serving.memory import check_fits, largest_batch
from repro.predict.serving.parameters import engine, weights_of
from repro.predict.serving.served import Engine, Served, served
from repro.predict.workload import Array, divisors

# Columns in which plans differ.
SPLIT = ("precision", "tp", "pp", "ep", "batch")
_WIDEST, _BATCHES = 16, [2**power for power in range(11)]
# Pareto-optimal plans that `estimate_text` shows.
_SHOWN = 10


@dataclass(frozen=True)
class Service:
    """Deployment of a model: GPUs, tokens per prompt and per output, and software.

    Raises
    ------
    ReproError
        There is no GPU.
    """

    model: OpenModel | ModelFile
    where: Hardware
    gpus: int
    input_tokens: int
    output_tokens: int
    stack: str = ""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ReproError(f"gpus {self.gpus}: take 1 or more")

    @property
    def device(self) -> Gpu:
        """GPU with its links and NICs."""
        return self.where.device


def serving_plans(
    of: Service, precisions: Sequence[str] = ("bf16",), batch: int | None = None
) -> pd.DataFrame:
    """Predict all plans that fit in memory; copies of the model share the GPUs and the requests.

    Batches of a copy are powers of two that fit, or `batch`, of which others wait.

    Returns
    -------
    DataFrame
        One row per plan: `SPLIT` (the batch is one copy's), copies, first_token_s, output_token_s
        with low_s and high_s (90 %), tokens_per_s_per_gpu, and `best` (Pareto-optimal in
        output_token_s and tokens_per_s_per_gpu).

    Raises
    ------
    ReproError
        A precision is unknown or not supported by the GPU, or nothing fits.
    """
    rows = splits(of, _BATCHES if batch is None else (batch,))
    least = None if batch is None else rows.groups
    found = pd.concat([_fitting(of, rows, name, least) for name in precisions], ignore_index=True)
    costs = np.stack([found.output_token_s, -found.tokens_per_s_per_gpu], axis=1)
    return found.assign(best=pareto(costs))


def splits(of: Service, batches: Sequence[int] = (1,)) -> Served:
    """List the splits of a model over GPUs that divide both, with each of the batches."""
    shape, sizes = of.model.shape, divisors(of.gpus)
    plans = enumerate_plans(
        of.gpus,
        of.model.label,
        widths=(shape.heads,),
        tp=sizes[sizes <= _WIDEST],
        pp=sizes,
        ep=divisors(max(shape.experts, 1)),
        micro_batch=batches,
    )
    # Experts are split like matrices, or sharded across as many GPUs as one stage can have.
    most = np.minimum(of.gpus // plans.pp, of.device.domain_gpus)
    spread = (plans.ep == most) & ((plans.ep % plans.tp == 0) | (plans.ep <= plans.tp))
    plans = plans[(plans.ep == 1) | (plans.ep == plans.tp) | spread]
    return _served(of, tp=plans.tp, pp=plans.pp, ep=plans.ep, batch=plans.micro_batch)


def _fitting(of: Service, rows: Served, precision: str, least: Array | None = None) -> pd.DataFrame:
    """Predict the plans of which all sequences, or the `least`, fit in memory in one precision."""
    on = engine(of.device, weights_of(of.model, precision), stack=of.stack)
    check_fits(rows, on)
    needed = rows.batch if least is None else least
    rows = rows.rows((needed <= largest_batch(rows, on)) & (rows.batch >= rows.groups))
    time = latency(passes(rows, on), on)
    return pd.DataFrame(
        {
            "precision": precision,
            **{name: getattr(rows, name).astype(int) for name in SPLIT[1:]},
            "copies": (of.gpus / rows.gpus).astype(int),
            "first_token_s": time.first_token_s,
            "output_token_s": time.output_token_s,
            **interval(
                time.output_token_s, np.hypot(on.half_width(rows), transfer_width(of.where))
            ),
            "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
        }
    )


def _served(of: Service, **sizes: Any) -> Served:
    return served(
        of.model.shape, input_tokens=of.input_tokens, output_tokens=of.output_tokens, **sizes
    )


def _served_by(of: Service, plan: pd.Series, device: Gpu) -> tuple[Served, Engine]:
    """Return the row of one plan, and its engine on a GPU."""
    on = engine(device, weights_of(of.model, str(plan.precision)), stack=of.stack)
    return _served(of, **{name: float(plan[name]) for name in SPLIT[1:]}), on


def best_plan(
    plans: pd.DataFrame,
    token_ms: float | None = None,
    first_ms: float | None = None,
    among: str = "",
) -> pd.Series:
    """Choose the plan with most tokens per second and GPU within latencies in milliseconds.

    `among` ends the description of a latency in errors.

    Raises
    ------
    ReproError
        No plan is as fast; the message has the time of the fastest.
    """
    within = pd.Series(True, index=plans.index)
    for name, limit in (("output_token_s", token_ms), ("first_token_s", first_ms)):
        if limit is None:
            continue
        fast = within & (plans[name] <= 1e-3 * limit)
        if not fast.any():
            raise ReproError(
                f"{name.removesuffix('_s').replace('_', ' ')} of {limit:g} ms{among}: the fastest "
                f"plan takes {1e3 * plans[name][within].min():.3g} ms; take more or faster GPUs, "
                "or a lower precision"
            )
        within = fast
    chosen = plans[within]
    return chosen.iloc[int(chosen.tokens_per_s_per_gpu.to_numpy().argmax())]


def operators(of: Service, plan: pd.Series) -> pd.DataFrame:
    """List the operators of one plan's prompts, and of one token per sequence.

    Returns
    -------
    DataFrame
        One row per operator of each `phase` (prefill, decode): time_s of all layers, share_pct of
        its phase, intensity (FLOPs per byte of memory; NaN for collectives), rate (FLOP/s)
        and bound (compute, memory, network, launch).
    """
    rows, on = _served_by(of, plan, of.device)
    known = passes(rows, on)
    phases = {
        "prefill": (known.prompts, known.prompt_passes[0]),
        "decode": (known.tokens, known.token_passes[0]),
    }
    table = pd.DataFrame(
        {
            "phase": phase,
            "operator": part.name,
            "time_s": part_s(part, on.costs)[0] * count,
            "intensity": part.flops[0] / (part.memory_bytes[0] or np.nan),
            "flops": part.flops[0] * part.count[0] * count,
            "bound": str(bound(part, on)[0]),
        }
        for phase, (parts, count) in phases.items()
        for part in parts
        if part.count[0] > 0
    )
    whole_s = table.groupby("phase").time_s.transform("sum")
    return table.assign(
        share_pct=100 * table.time_s / whole_s, rate=table.pop("flops") / table.time_s
    )


def by_memory(of: Service, plan: pd.Series, kinds: Sequence[MemoryKind]) -> pd.DataFrame:
    """Predict one plan's latencies with other memories, even if they are too small for it.

    Returns
    -------
    DataFrame
        One row per memory: gbytes_per_s, gb, fits, first_token_s, output_token_s.
    """
    rows = []
    for kind in kinds:
        # All places of a package, or of a socket, have the memory.
        rate, size = kind.gbytes_per_s * kind.places, kind.gb * kind.places
        device = of.device.model_copy(update={"memory_gbytes_per_s": rate, "memory_gb": size})
        row, on = _served_by(of, plan, device)
        time = latency(passes(row, on), on)
        rows.append(
            {
                "memory": kind.name,
                "gbytes_per_s": rate,
                "gb": size,
                "fits": bool((largest_batch(row, on) >= row.batch).all()),
                "first_token_s": float(time.first_token_s[0]),
                "output_token_s": float(time.output_token_s[0]),
            }
        )
    return pd.DataFrame(rows)


def estimate_text(of: Service, plans: pd.DataFrame, plan: pd.Series) -> str:
    """Format a plan, the bounds of its operators, and the Pareto-optimal plans as text."""
    split = " ".join(f"{name}={plan[name]}" for name in SPLIT)
    front = plans[plans.best].sort_values("output_token_s")
    shown = front.iloc[np.unique(np.linspace(0, len(front) - 1, _SHOWN).astype(int))]
    lines = [
        f"{of.model.label} on {of.gpus} x {of.device.label}, prompts of {of.input_tokens} tokens, "
        f"{of.output_tokens} output tokens (predicted)",
        f"{split}, copies={plan.copies}: first token {1e3 * plan.first_token_s:.3g} ms, then "
        f"{1e3 * plan.output_token_s:.3g} ms per token [{1e3 * plan.low_s:.3g}, "
        f"{1e3 * plan.high_s:.3g}], {throughput_text(plan)}",
        "",
        operators_text(operators(of, plan)),
        "",
        "Pareto-optimal plans by time per token and throughput:",
        _front_text(shown),
    ]
    return "\n".join(lines)


def with_costs(plans: pd.DataFrame, gpu_hour_cost: float | None) -> pd.DataFrame:
    """Add what a million output tokens cost, if the price of a GPU's hour is known."""
    if gpu_hour_cost is None:
        return plans
    if not gpu_hour_cost > 0:
        raise ReproError(f"gpu-hour cost {gpu_hour_cost:g}: take more than 0")
    millions_per_hour = 3600e-6 * plans.tokens_per_s_per_gpu
    return plans.assign(cost_per_million_tokens=gpu_hour_cost / millions_per_hour)


def throughput_text(plan: pd.Series) -> str:
    """Format tokens per second and GPU, and what they cost if that is known."""
    cost = plan.get("cost_per_million_tokens")
    priced = "" if cost is None else f", {cost:.3g} per million output tokens"
    return f"{plan.tokens_per_s_per_gpu:.0f} tokens/s/GPU{priced}"


def operators_text(found: pd.DataFrame) -> str:
    shown = found[["phase", "operator"]].assign(
        time_ms=(1e3 * found.time_s).map("{:.3g}".format),
        share_pct=found.share_pct.map("{:.0f}".format),
        intensity=found.intensity.map("{:.3g}".format),
        bound=found.bound,
    )
    return shown.to_string(index=False)


def _front_text(plans: pd.DataFrame) -> str:
    shown = plans[[*SPLIT, "copies"]].assign(
        first_token_ms=(1e3 * plans.first_token_s).map("{:.3g}".format),
        output_token_ms=(1e3 * plans.output_token_s).map("{:.3g}".format),
        tokens_per_s_per_gpu=plans.tokens_per_s_per_gpu.map("{:.0f}".format),
    )
    return shown.to_string(index=False)
