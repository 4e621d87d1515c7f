"""Plans that serve a model on some GPUs: latency, throughput, and the bound of each operator."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repro.catalog.models.open_models import OpenModel, open_model
from repro.catalog.systems.clusters import Cluster, cluster
from repro.catalog.systems.gpus import Gpu, gpu
from repro.catalog.systems.technology import MemoryKind
from repro.errors import ReproError
from repro.predict.explore.jobs.search import Plans, enumerate_plans, pareto
from repro.predict.serving.forward import Part, bound
from repro.predict.serving.latency import latency, part_s, passes
from repro.predict.serving.memory import check_fits, largest_batch
from repro.predict.serving.parameters import engine
from repro.predict.serving.served import Engine, Served, served
from repro.predict.workload import divisors

# Columns in which plans differ.
SPLIT = ("precision", "tp", "pp", "ep", "batch")
_WIDEST, _BATCHES = 16, [2**power for power in range(11)]
# Pareto-optimal plans that `estimate_text` shows.
_SHOWN = 10


@dataclass(frozen=True)
class Service:
    """Deployment of a model: GPUs, tokens per prompt and per output, and software.

    `device` need not be in the catalogue.
    """

    model: OpenModel
    device: Gpu
    gpus: int
    input_tokens: int
    output_tokens: int
    stack: str = ""


def service(
    model: str,
    device: str,
    gpus: int,
    input_tokens: int,
    output_tokens: int,
    stack: str = "",
    on_cluster: str | None = None,
) -> Service:
    """Choose a service by names in `params/`; a cluster has its own GPU, links and NICs.

    Raises
    ------
    ReproError
        A name is unknown, or a number is less than 1.
    """
    for name, value in {
        "gpus": gpus,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
    }.items():
        if value < 1:
            raise ReproError(f"{name} is {value}; wanted is 1 or more")
    where = gpu(device) if on_cluster is None else _gpu_of(cluster(on_cluster))
    return Service(open_model(model), where, gpus, input_tokens, output_tokens, stack)


def _gpu_of(entry: Cluster) -> Gpu:
    node, fabric = entry.topology.levels[-2:]
    count = entry.topology.gpus_per_node
    changed = {
        "domain_gpus": count,
        "link_gbytes_per_s": node.link_gbps / 8,
        "nic_gbps": fabric.link_gbps / count,
    }
    return entry.device.model_copy(update=changed)


def serving_plans(
    of: Service, precisions: Sequence[str] = ("bf16",), batch: int | None = None
) -> pd.DataFrame:
    """Predict all plans that fit in memory; copies of the model share the GPUs and the requests.

    Batches of a copy are powers of two, or `batch`.

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
    candidates = _candidates(of, batch)
    found = pd.concat([_priced(of, candidates, name) for name in precisions], ignore_index=True)
    costs = np.stack([found.output_token_s, -found.tokens_per_s_per_gpu], axis=1)
    return found.assign(best=pareto(costs))


def _candidates(of: Service, batch: int | None) -> Plans:
    """Enumerate the plans whose copies divide the GPUs; `micro_batch` is one copy's batch."""
    shape, sizes = of.model.shape, divisors(of.gpus)
    plans = enumerate_plans(
        of.gpus,
        of.model.label,
        widths=(shape.heads,),
        tp=sizes[sizes <= _WIDEST],
        pp=sizes,
        ep=divisors(max(shape.experts, 1)),
        micro_batch=_BATCHES if batch is None else (batch,),
    )
    # Experts are split like matrices, or sharded across as many GPUs as one stage can have.
    most = np.minimum(of.gpus // plans.pp, of.device.domain_gpus)
    spread = (plans.ep == most) & ((plans.ep % plans.tp == 0) | (plans.ep <= plans.tp))
    return plans.rows((plans.ep == 1) | (plans.ep == plans.tp) | spread)


def _priced(of: Service, plans: Plans, precision: str) -> pd.DataFrame:
    """Predict the plans that fit in memory in one precision."""
    on = engine(of.device, precision, stack=of.stack)
    rows = served(
        of.model.shape,
        tp=plans.tp,
        pp=plans.pp,
        ep=plans.ep,
        batch=plans.micro_batch,
        input_tokens=of.input_tokens,
        output_tokens=of.output_tokens,
    )
    check_fits(rows, on)
    rows = rows.rows((rows.batch <= largest_batch(rows, on)) & (rows.batch >= rows.groups))
    time = latency(passes(rows, on), on)
    width = np.exp(on.half_width)
    return pd.DataFrame(
        {
            "precision": precision,
            **{name: getattr(rows, name).astype(int) for name in SPLIT[1:]},
            "copies": (of.gpus / rows.gpus).astype(int),
            "first_token_s": time.first_token_s,
            "output_token_s": time.output_token_s,
            "low_s": time.output_token_s / width,
            "high_s": time.output_token_s * width,
            "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
        }
    )


def best_plan(
    plans: pd.DataFrame, token_ms: float | None = None, first_ms: float | None = None
) -> pd.Series:
    """Choose the plan with most tokens per second and GPU within latencies in milliseconds.

    Raises
    ------
    ReproError
        No plan is as fast; the message has the time of the fastest.
    """
    within = pd.Series(True, index=plans.index)
    for name, limit in (("output_token_s", token_ms), ("first_token_s", first_ms)):
        if limit is None:
            continue
        within &= plans[name] <= 1e-3 * limit
        if not within.any():
            raise ReproError(
                f"{name.removesuffix('_s').replace('_', ' ')} of {limit:g} ms: the fastest plan "
                f"takes {1e3 * plans[name].min():.3g} ms; take more or faster GPUs, or a lower "
                "precision"
            )
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
    on = engine(of.device, str(plan.precision), stack=of.stack)
    rows = _row(of, plan)
    known = passes(rows, on)
    tables = [
        _operator_table(phase, parts, count, on)
        for phase, parts, count in (
            ("prefill", known.prompts, known.prompt_passes),
            ("decode", known.tokens, known.token_passes),
        )
    ]
    return pd.concat(tables, ignore_index=True)


def _row(of: Service, plan: pd.Series) -> Served:
    sizes = {name: float(plan[name]) for name in SPLIT[1:]}
    return served(
        of.model.shape, input_tokens=of.input_tokens, output_tokens=of.output_tokens, **sizes
    )


def _operator_table(phase: str, parts: list[Part], count: np.ndarray, on: Engine) -> pd.DataFrame:
    there = [part for part in parts if part.count[0] > 0]
    seconds = np.array([(part_s(part, on.costs) * count)[0] for part in there])
    flops = np.array([part.flops[0] for part in there])
    moved = np.array([part.memory_bytes[0] or np.nan for part in there])
    calls = np.array([part.count[0] for part in there]) * count[0]
    return pd.DataFrame(
        {
            "phase": phase,
            "operator": [part.name for part in there],
            "time_s": seconds,
            "share_pct": 100 * seconds / seconds.sum(),
            "intensity": flops / moved,
            "rate": flops * calls / seconds,
            "bound": [str(bound(part, on)[0]) for part in there],
        }
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
        on, row = engine(device, str(plan.precision), stack=of.stack), _row(of, plan)
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
    found = operators(of, plan)
    split = " ".join(f"{name}={plan[name]}" for name in SPLIT)
    front = plans[plans.best].sort_values("output_token_s")
    shown = front.iloc[np.unique(np.linspace(0, len(front) - 1, _SHOWN).astype(int))]
    lines = [
        f"{of.model.label} on {of.gpus} x {of.device.label}, prompts of {of.input_tokens} tokens, "
        f"{of.output_tokens} output tokens (predicted)",
        f"{split}, copies={plan.copies}: first token {1e3 * plan.first_token_s:.3g} ms, then "
        f"{1e3 * plan.output_token_s:.3g} ms per token [{1e3 * plan.low_s:.3g}, "
        f"{1e3 * plan.high_s:.3g}], {plan.tokens_per_s_per_gpu:.0f} tokens/s/GPU",
        "",
        _operators_text(found),
        "",
        "Pareto-optimal plans by time per token and throughput:",
        _front_text(shown),
    ]
    return "\n".join(lines)


def _operators_text(found: pd.DataFrame) -> str:
    shown = found.assign(
        time_ms=(1e3 * found.time_s).map("{:.3g}".format),
        share_pct=found.share_pct.map("{:.0f}".format),
        intensity=found.intensity.map("{:.3g}".format),
    )
    columns = ["phase", "operator", "time_ms", "share_pct", "intensity", "bound"]
    return shown[columns].to_string(index=False)


def _front_text(plans: pd.DataFrame) -> str:
    shown = plans[[*SPLIT, "copies"]].assign(
        first_token_ms=(1e3 * plans.first_token_s).map("{:.3g}".format),
        output_token_ms=(1e3 * plans.output_token_s).map("{:.3g}".format),
        tokens_per_s_per_gpu=plans.tokens_per_s_per_gpu.map("{:.0f}".format),
    )
    return shown.to_string(index=False)
