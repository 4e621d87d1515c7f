"""Plans that serve requests at a rate: percentiles of their times, and the fewest GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from repro.errors import DoesNotFit, ReproError
from repro.predict.explore.jobs.search import transfer_width
from repro.predict.explore.jobs.serving import (
    SPLIT,
    Service,
    best_plan,
    operators,
    operators_text,
    splits,
    throughput_text,
)
from repro.predict.serving.load import Copy, copies, simulate
from repro.predict.serving.parameters import engine, weights_of

PERCENTILES = (50, 90, 99)
TIMES = ("first_token_s", "output_token_s", "request_s")
# GPUs of one copy that a search for the fewest GPUs tries.
_COPY_GPUS = (1, 2, 4, 8, 16, 32, 64)
# Means of simulated times lie within this factor of what `Copy` says of them.
_NEAR = 1.1
# Plans that `load_text` shows.
_SHOWN = 10
# Utilization at which requests hardly meet.
_IDLE = 0.01


@dataclass(frozen=True)
class Load:
    """Requests that arrive at random, and times in milliseconds that `percentile` % may take.

    Raises
    ------
    ReproError
        The rate is not positive, or the percentile is not one of `PERCENTILES`.
    """

    requests_per_s: float
    token_ms: float | None = None
    first_ms: float | None = None
    percentile: int = 90

    def __post_init__(self) -> None:
        if not self.requests_per_s > 0:
            raise ReproError(f"rate {self.requests_per_s:g} requests/s: take more than 0")
        if self.percentile not in PERCENTILES:
            raise ReproError(f"percentile {self.percentile}: take 50, 90 or 99")

    def allows(self, plan: Mapping[Any, Any]) -> bool:
        """Return whether a plan's times are within the limits."""
        limits = {"output_token": self.token_ms, "first_token": self.first_ms}
        return all(
            limit is None or 1e3 * plan[f"{name}_p{self.percentile}_s"] <= limit
            for name, limit in limits.items()
        )


def load_plans(
    of: Service,
    load: Load,
    precisions: Sequence[str] = ("bf16",),
    batch: int | None = None,
    fewest: bool = False,
) -> pd.DataFrame:
    """Predict the plans that serve a load within its limits; the best is the first.

    All copies of the model have equal parts of the load, of at most `batch` sequences at once.
    With `fewest` plans take as few GPUs as they can, otherwise those of the service.

    Returns
    -------
    DataFrame
        One row per plan: precision, tp, pp, ep, copies and gpus; batch and in_flight, the mean
        number of requests of a copy, and most_in_flight; utilization; most_requests_per_s of all
        copies; tokens_per_s_per_gpu; `PERCENTILES` of `TIMES`, such as first_token_p90_s. The
        first row also has the ends of 90 % intervals, such as first_token_low_s, of the load's
        percentile; missing if the copies may not sustain the load.

    Raises
    ------
    ReproError
        The GPUs do not sustain the load, no plan is as fast, or the software is not suitable.
    """
    known = _copies(of, precisions, batch, _COPY_GPUS if fewest else (of.gpus,))
    if fewest:
        plans = _with_fewest(known, load)
    else:
        shared = [(one, of.gpus // one.gpus) for one in known]
        most = max(count * one.most_requests_per_s for one, count in shared)
        if load.requests_per_s >= most:
            raise ReproError(
                f"rate {load.requests_per_s:g} requests/s: {of.gpus} x {of.device.label} sustain "
                f"less than {most:.3g} requests/s; take more GPUs, or omit --gpus for the fewest"
            )
        plans = [
            _under(one, count, load)
            for one, count in shared
            if load.requests_per_s < count * one.most_requests_per_s
        ]
    ranked = pd.DataFrame(plans).sort_values(
        ["gpus", f"request_p{load.percentile}_s"], ignore_index=True
    )
    limited = {f"{name[:-2]}_p{load.percentile}_s": name for name in TIMES}
    among = f" for {load.percentile} % of requests"
    best_plan(ranked.rename(columns=limited), load.token_ms, load.first_ms, among)
    kept = ranked[[load.allows(plan) for plan in ranked.to_dict("records")]].drop(columns="copy")
    best = ranked.loc[kept.index[0]]
    ends = pd.DataFrame(_interval(best["copy"], int(best.copies), load), index=kept.index[:1])
    return kept.join(ends).reset_index(drop=True)


def _copies(
    of: Service, precisions: Sequence[str], batch: int | None, sizes: Sequence[int]
) -> list[Copy]:
    """Price the copies that fit, of all sizes or of those that divide the only one."""
    found: list[Copy] = []
    refused: DoesNotFit | None = None
    for gpus in sizes:
        rows = splits(replace(of, gpus=gpus))
        if len(sizes) > 1:
            rows = rows.rows(rows.gpus == gpus)
        for name in precisions:
            on = engine(of.device, weights_of(of.model, name), stack=of.stack)
            try:
                fitting = copies(rows, on, batch)
            except DoesNotFit as error:
                refused = error
                continue
            found += [
                replace(
                    one,
                    split={"precision": name, **one.split},
                    half_width=float(np.hypot(one.half_width, transfer_width(of.where))),
                )
                for one in fitting
            ]
    if refused is not None and not found:
        raise refused
    return found


def _with_fewest(known: Sequence[Copy], load: Load) -> list[dict[str, Any]]:
    """Return the plans with the fewest GPUs within the limits, or all copies when they are idle."""
    started = [(_fewest(one, load), one) for one in known]
    least = sorted(
        ((count * one.gpus, count, one) for count, one in started), key=lambda at: at[:2]
    )
    found: list[dict[str, Any]] = []
    for gpus, count, one in least:
        most = found[0]["gpus"] // one.gpus if found else None
        if found and gpus > found[0]["gpus"]:
            break
        plan = _least(one, count, load, most)
        if plan is not None:
            found = [*(other for other in found if other["gpus"] <= plan["gpus"]), plan]
    return found or [_under(one, _idle(one, load), load) for one in known]


def _idle(one: Copy, load: Load) -> int:
    return int(load.requests_per_s / (_IDLE * one.most_requests_per_s)) + 1


def _fewest(one: Copy, load: Load) -> int:
    """Return the copies that sustain the load with the mean time per token that is allowed."""
    token_s = (one.total_s - one.prompt_s) / one.output_tokens
    allowed_s = _NEAR * 1e-3 * (load.token_ms or np.inf)
    rates = one.sequences / one.total_s
    # The first size that is too slow bounds those that are not.
    reached = np.minimum(np.count_nonzero(token_s <= allowed_s), len(rates) - 1)
    return int(load.requests_per_s / rates[: reached + 1].max()) + 1


def _least(one: Copy, count: int, load: Load, most: int | None) -> dict[str, Any] | None:
    """Return the plan with the fewest copies, `count` to `most`, within the limits, if any is."""
    most = _idle(one, load) if most is None else most
    plan = _under(one, most, load) if most >= count else {}
    if not plan or not load.allows(plan):
        return None
    while count < most:
        middle = min((count + most) // 2, 2 * count)
        tried = _under(one, middle, load)
        if load.allows(tried):
            most, plan = middle, tried
        else:
            count = middle + 1
    return plan


def _under(one: Copy, count: int, load: Load) -> dict[str, Any]:
    """Describe so many copies under a load."""
    rate, gpus = load.requests_per_s / count, count * one.gpus
    in_flight = one.in_flight(rate)
    return {
        "copy": one,
        **one.split,
        "batch": max(round(in_flight), round(one.sequences[0])),
        "copies": count,
        "gpus": gpus,
        "in_flight": in_flight,
        "most_in_flight": int(one.sequences[-1]),
        "utilization": rate / one.most_requests_per_s,
        "most_requests_per_s": count * one.most_requests_per_s,
        "tokens_per_s_per_gpu": load.requests_per_s * one.output_tokens / gpus,
        **_percentiles(one, rate),
    }


def _percentiles(one: Copy, rate: float) -> dict[str, float]:
    times = simulate(one, rate)
    return {
        f"{name[:-2]}_p{percentile}_s": float(np.percentile(times[name], percentile))
        for name in TIMES
        for percentile in PERCENTILES
    }


def _interval(one: Copy, count: int, load: Load) -> dict[str, float]:
    """Return the ends of 90 % intervals, from copies whose passes are as fast or slow."""
    ends = {}
    for end, sign in (("low", -1), ("high", 1)):
        slowed, rate = one.slowed(np.exp(sign * one.half_width)), load.requests_per_s / count
        times = _percentiles(slowed, rate) if rate < slowed.most_requests_per_s else {}
        for name in TIMES:
            of = name[:-2]
            ends[f"{of}_{end}_s"] = times.get(f"{of}_p{load.percentile}_s", np.nan)
    return ends


def _shown(seconds: float, name: str) -> str:
    """Format a time; it is missing where copies do not sustain the load."""
    unit = 1.0 if name == "request" else 1e3
    return "overload" if np.isnan(seconds) else f"{unit * seconds:.3g}"


def load_text(of: Service, load: Load, plans: pd.DataFrame) -> str:
    """Format the best plan with its percentiles and operators, and the other plans, as text."""
    best, at = plans.iloc[0], f"p{load.percentile}"
    copy = " ".join(f"{name}={best[name]}" for name in SPLIT[:-1])
    names = [name[:-2] for name in TIMES]
    columns = [*(f"p{one}" for one in PERCENTILES), "low", "high"]
    times = pd.DataFrame(
        {one: [_shown(best[f"{name}_{one}_s"], name) for name in names] for one in columns},
        index=["first token, ms", "output token, ms", "request, s"],
    ).rename(columns={"low": f"{at}_low", "high": f"{at}_high"})
    others = plans[[*SPLIT[:-1], "copies"]].assign(
        utilization_pct=(100 * plans.utilization).map("{:.0f}".format),
        **{
            f"{name}_{'s' if name == 'request' else 'ms'}": [
                _shown(seconds, name) for seconds in plans[f"{name}_{at}_s"]
            ]
            for name in names
        },
    )
    lines = [
        f"{of.model.label} on {best.gpus} x {of.device.label}, {load.requests_per_s:g} requests/s, "
        f"prompts of {of.input_tokens} tokens, {of.output_tokens} output tokens (predicted)",
        f"{copy}, copies={best.copies}: each has {best.in_flight:.3g} of at most "
        f"{best.most_in_flight} requests in flight, {100 * best.utilization:.0f} % of "
        f"{best.most_requests_per_s:.3g} requests/s, {throughput_text(best)}",
        "",
        times.to_string(),
        "",
        operators_text(operators(of, best)),
        "",
        f"Plans on {best.gpus} GPUs, shortest {at} of requests first:",
        others.head(_SHOWN).to_string(index=False),
    ]
    return "\n".join(lines)
