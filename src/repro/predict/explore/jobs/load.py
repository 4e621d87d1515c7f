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
# Plans that `load_text` shows.
_SHOWN = 10
# Means of simulated times lie within this factor of what `Copy` says of them.
_NEAR = 1.1
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
    rate = load.requests_per_s / best.copies
    ends = _interval(best["copy"], rate, load, transfer_width(of.where))
    return kept.join(pd.DataFrame(ends, index=kept.index[:1])).reset_index(drop=True)


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
                found += copies(rows, on, batch)
            except DoesNotFit as error:
                refused = error
    if refused is not None and not found:
        raise refused
    return found


def _with_fewest(known: Sequence[Copy], load: Load) -> list[dict[str, Any]]:
    """Return the plans with the fewest GPUs within the limits, or all copies when they are idle."""
    rate, token_s = load.requests_per_s, _NEAR * 1e-3 * (load.token_ms or np.inf)
    idle = [int(rate / (_IDLE * one.most_requests_per_s)) + 1 for one in known]
    least = [int(rate / one.bound_requests_per_s(token_s)) + 1 for one in known]
    found: list[dict[str, Any]] = []
    ranges = sorted(zip(least, idle, known, strict=True), key=lambda at: at[0] * at[2].gpus)
    for count, most, one in ranges:
        if found:
            most = found[-1]["gpus"] // one.gpus
        if most >= count and load.allows(_under(one, most, load)):
            found.append(_least(one, count, most, load))
    fewest = [plan for plan in found if plan["gpus"] == found[-1]["gpus"]]
    return fewest or [_under(one, count, load) for one, count in zip(known, idle, strict=True)]


def _least(one: Copy, count: int, most: int, load: Load) -> dict[str, Any]:
    """Return the plan with the fewest copies within the limits, as `most` copies are."""
    while count < most:
        middle = min((count + most) // 2, 2 * count)
        if load.allows(_under(one, middle, load)):
            most = middle
        else:
            count = middle + 1
    return _under(one, most, load)


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


def _interval(one: Copy, rate: float, load: Load, added_width: float) -> dict[str, float]:
    """Return the ends of 90 % intervals: if passes take longer, so many more requests meet."""
    ends, width = {}, np.hypot(one.half_width, added_width)
    for end, slower in (("low", np.exp(-width)), ("high", np.exp(width))):
        sustained = slower * rate < one.most_requests_per_s
        times = _percentiles(one, slower * rate) if sustained else {}
        for name in TIMES:
            time_s = times.get(f"{name[:-2]}_p{load.percentile}_s", np.nan)
            ends[f"{name[:-2]}_{end}_s"] = slower * time_s
    return ends


def load_text(of: Service, load: Load, plans: pd.DataFrame) -> str:
    """Format the best plan with its percentiles and operators, and the other plans, as text."""
    best, at = plans.iloc[0], f"p{load.percentile}"
    copy = " ".join(f"{name}={best[name]}" for name in SPLIT[:-1])
    names = {f"{name[:-2]}_{at}_s": f"{name[:-2]}_ms" for name in TIMES}
    columns = [*(f"p{one}" for one in PERCENTILES), "low", "high"]
    times = pd.DataFrame(
        {one: [1e3 * best[f"{name[:-2]}_{one}_s"] for name in TIMES] for one in columns},
        index=[*names.values()],
    ).rename(columns={"low": f"{at}_low", "high": f"{at}_high"})
    others = plans[[*SPLIT[:-1], "copies", "utilization"]].join(1e3 * plans[[*names]])
    lines = [
        f"{of.model.label} on {best.gpus} x {of.device.label}, {load.requests_per_s:g} requests/s, "
        f"prompts of {of.input_tokens} tokens, {of.output_tokens} output tokens (predicted)",
        f"{copy}, copies={best.copies}: each has {best.in_flight:.3g} of at most "
        f"{best.most_in_flight} requests in flight, {100 * best.utilization:.0f} % of "
        f"{best.most_requests_per_s:.3g} requests/s, {throughput_text(best)}",
        "",
        times.to_string(float_format="{:.1f}".format, na_rep="overload"),
        "",
        operators_text(operators(of, best)),
        "",
        f"Plans on {best.gpus} GPUs, shortest {at} of requests first:",
        others.rename(columns=names)
        .head(_SHOWN)
        .to_string(index=False, float_format="{:.4g}".format),
    ]
    return "\n".join(lines)
