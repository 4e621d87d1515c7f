"""Latencies of requests that arrive at random: queueing of prompts, shared steps, a full cache."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from repro.errors import ReproError
from repro.predict.serving.latency import latency, passes, prompt_room
from repro.predict.serving.memory import check_fits, largest_batch
from repro.predict.serving.served import Engine, Served
from repro.predict.workload import Array

# Sizes between the fewest and the most sequences at which a copy is priced.
_SIZES = 12
# Simulated requests, and more for each that is in flight; the first part fills the copy.
_REQUESTS, _PER_IN_FLIGHT, _FILLING = 10_000, 20, 0.25
_SEED = 1


@dataclass(frozen=True)
class Copy:
    """One copy of a model with its times by the number of sequences that run at once.

    Attributes
    ----------
    split
        Weights' format; tensor, pipeline and expert parallel sizes.
    half_width
        Half of the 90 % interval of ln(time).
    sequences
        Increasing; the last is the most that memory and engine take.
    step_s, prompt_s
        One token of each sequence, and what a prompt adds to the steps that it is in.
    drain_s
        Time in which a prompt passes the other pipeline stages, where the next one follows it.
    prompt_tokens
        Tokens of prompts that one step takes.
    total_s
        A request, where each that ends is replaced by another.
    """

    split: dict[str, Any]
    gpus: int
    half_width: float
    input_tokens: int
    output_tokens: int
    sequences: Array
    step_s: Array
    prompt_s: Array
    drain_s: Array
    prompt_tokens: Array
    total_s: Array

    @property
    def most_requests_per_s(self) -> float:
        """Requests per second with as many in flight as there can be."""
        return float(self.sequences[-1] / self.total_s[-1])

    def bound_requests_per_s(self, token_s: float) -> float:
        """Return a bound on the requests per second at which tokens take a mean time or less."""
        mean_s = (self.total_s - self.prompt_s) / self.output_tokens
        # The first size that is too slow bounds those that are not.
        reached = np.count_nonzero(mean_s <= token_s) + 1
        rates = self.sequences[:reached] / self.total_s[:reached]
        return min(float(rates.max()), self.most_requests_per_s)

    def in_flight(self, requests_per_s: float) -> float:
        """Return the mean number of requests in flight: arrival rate times time (Little, 1961)."""
        rates = np.maximum.accumulate(self.sequences / self.total_s)
        return float(np.interp(requests_per_s, [0.0, *rates], [0.0, *self.sequences]))


def copies(rows: Served, engine: Engine, most: int | None = None) -> list[Copy]:
    """Price one copy per row that fits in memory, with at most `most` sequences at once.

    Raises
    ------
    ReproError
        The software serves batch by batch, answers have a single token, or nothing fits.
    """
    if most is not None and most < 1:
        raise ReproError(f"batch is {most}; take 1 or more")
    if not engine.stack.steady_pipeline:
        raise ReproError(
            f"a request rate on {engine.stack.label}, which serves batch by batch; fix: choose "
            "another --stack"
        )
    if (rows.output_tokens < 2).any():
        raise ReproError("a request rate with 1 output token; take 2 or more (--output)")
    largest = np.minimum(largest_batch(rows, engine), most or np.inf)
    check_fits(rows, engine)
    rows, largest = rows.rows(largest >= rows.groups), largest[largest >= rows.groups]
    part = np.linspace(0, 1, _SIZES)
    batch = rows.groups[:, None] * (largest / rows.groups)[:, None] ** part
    at = np.repeat(np.arange(len(largest)), _SIZES)
    sized = replace(rows.rows(at), batch=batch.ravel())
    known = passes(sized, engine)
    time = latency(known, engine)
    room = prompt_room(sized, engine, known.token_passes)
    drain_s = time.prompt_s * (known.token_passes - 1) / np.ceil(sized.input_tokens / room)
    room = room * known.token_passes * sized.groups
    columns = (sized.batch, time.step_s, time.prompt_s, drain_s, room, time.total_s)
    return [
        Copy(
            {"precision": engine.weights}
            | {name: int(getattr(rows, name)[row]) for name in ("tp", "pp", "ep")},
            int(rows.gpus[row]),
            float(engine.half_width(rows)[row]),
            int(rows.input_tokens[row]),
            int(rows.output_tokens[row]),
            *(values.reshape(-1, _SIZES)[row] for values in columns),
        )
        for row in range(len(largest))
    ]


def simulate(copy: Copy, requests_per_s: float) -> pd.DataFrame:
    """Simulate the steps of one copy whose requests arrive at random and are alike in length.

    Arrivals are a Poisson process with a fixed seed. Each step writes a token of every sequence
    that runs and takes prompts in their order, as many tokens as there is room for. A request
    waits while as many as there can be are in flight.

    Returns
    -------
    DataFrame
        One row per request: first_token_s, from its arrival; output_token_s, on average from then
        on; request_s, from its arrival to its last token.
    """
    last = int(copy.sequences[-1])
    count = _REQUESTS + int(_PER_IN_FLIGHT * copy.in_flight(requests_per_s))
    running = np.arange(last + 1)
    token_s = copy.prompt_s / copy.input_tokens
    step_s, prompt_s, drain_s, room = (
        np.interp(running, copy.sequences, values).tolist()
        for values in (copy.step_s, token_s, copy.drain_s, copy.prompt_tokens)
    )
    uniform = np.random.default_rng(_SEED).random(count)
    arrivals = np.cumsum(-np.log1p(-uniform) / requests_per_s)
    arrival_s = [*arrivals.tolist(), np.inf]
    first_s, end_s, drained_s = np.zeros((3, count))
    clock_s, steps, admitted, ended = 0.0, 0, 0, 0
    # Requests in their order: those with a prompt left, and the last step of those that write.
    prompts: deque[list[float]] = deque()
    writing: deque[tuple[int, int]] = deque()
    while ended < count:
        while arrival_s[admitted] <= clock_s and admitted - ended < last:
            prompts.append([admitted, copy.input_tokens])
            admitted += 1
        active = admitted - ended
        if not active:
            clock_s = arrival_s[admitted]
            continue
        taken, whole = 0.0, []
        while prompts and taken < room[active]:
            tokens = min(prompts[0][1], room[active] - taken)
            taken += tokens
            prompts[0][1] -= tokens
            if prompts[0][1] <= 0:
                whole.append(int(prompts.popleft()[0]))
        # Steps without prompts are alike until a request ends or another one is admitted.
        alike = 1
        if not taken:
            alike = writing[0][0] - steps
            if active < last and arrival_s[admitted] < np.inf:
                until = (arrival_s[admitted] - clock_s) / step_s[active]
                alike = min(alike, max(int(np.ceil(until)), 1))
        clock_s += alike * step_s[active] + taken * prompt_s[active]
        steps += alike
        while writing and writing[0][0] <= steps:
            end_s[writing.popleft()[1]] = clock_s
            ended += 1
        for request in whole:
            first_s[request], drained_s[request] = clock_s, drain_s[active]
            writing.append((steps + copy.output_tokens - 1, request))
    table = pd.DataFrame(
        {
            "first_token_s": first_s + drained_s - arrivals,
            "output_token_s": (end_s - first_s) / (copy.output_tokens - 1),
            "request_s": end_s + drained_s - arrivals,
        }
    )
    return table.iloc[int(_FILLING * count) :]
