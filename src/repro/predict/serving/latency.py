"""How long tokens take: passes of operators and their software, and what follows for requests."""

from dataclasses import dataclass

import numpy as np

from repro.catalog.systems.serving import ServingCosts
from repro.predict.serving.forward import forward
from repro.predict.serving.parts import Part, prompt_pass, token_pass
from repro.predict.serving.served import Engine, Served
from repro.predict.workload import Array


@dataclass(frozen=True)
class RequestPasses:
    """The operators of prompts and of one new token, and how often each goes through.

    Kept apart from their times, because a software's costs change those only.
    """

    rows: Served
    prompts: list[Part]
    prompt_passes: Array
    tokens: list[Part]
    token_passes: Array


@dataclass(frozen=True)
class Latency:
    """Of requests of which a batch is served at a time, for each row.

    Attributes
    ----------
    first_token_s
        Of an engine that fills passes with any prompts those that one prompt is in; of others,
        which serve batch by batch, all prompts.
    output_token_s
        Between two tokens of one sequence, on average. Where sequences come and go, all are
        replaced while one is written, so that a token waits for its share of their prompts.
    total_s
        From the start of a batch to its last token.
    tokens_per_s_per_gpu
        What is written, over all of this and every GPU.
    """

    first_token_s: Array
    output_token_s: Array
    total_s: Array
    tokens_per_s_per_gpu: Array


def passes(rows: Served, engine: Engine) -> RequestPasses:
    """The operators of rows."""
    for_prompts, for_tokens = _prompt_passes(rows, engine), _token_passes(rows, engine)
    return RequestPasses(
        rows,
        forward(rows, engine, prompt_pass(rows, for_prompts)),
        for_prompts,
        forward(rows, engine, token_pass(rows, for_tokens)),
        for_tokens,
    )


def latency(of: RequestPasses, engine: Engine) -> Latency:
    """Times of requests, from their operators and the software's costs."""
    rows, costs, p = of.rows, engine.costs, of.rows.pp
    # A stage is a p-th of a pass, and stages work at the same time.
    one_pass = pass_s(of.prompts, costs)
    prompts = one_pass * (of.prompt_passes + p - 1) / p
    steady = engine.stack.steady_pipeline
    through = np.maximum(of.token_passes, p) if steady else of.token_passes + p - 1
    token = pass_s(of.tokens, costs) * through / p
    software = costs.step_s + costs.sequence_s * rows.batch / rows.groups
    prompts, token = prompts + software, token + software
    total = prompts + (rows.output_tokens - 1) * token
    rate = rows.batch * rows.output_tokens / total / rows.gpus
    if not steady:
        return Latency(prompts, token, total, rate)
    own = one_pass * np.ceil(rows.input_tokens / engine.stack.pass_tokens) + costs.step_s
    return Latency(own, total / rows.output_tokens, total, rate)


def part_s(part: Part, costs: ServingCosts) -> Array:
    """All of an operator in a pass, with what the software adds to it."""
    factors = {"product": costs.products, "elements": costs.traffic}
    one = (
        part.fixed_s
        + factors.get(part.kind, 1.0) * part.time_s
        + part.read_s / costs.reading
        + costs.gap_s * part.launches
        + costs.arrival_s * part.doublings
        + costs.hop_s * part.hops
    )
    seconds: Array = part.count * one
    return seconds


def pass_s(parts: list[Part], costs: ServingCosts) -> Array:
    """All operators of a pass, one after another."""
    seconds: Array = np.sum([part_s(part, costs) for part in parts], axis=0)
    return seconds


def _prompt_passes(rows: Served, engine: Engine) -> Array:
    """Passes of `pass_tokens` or fewer: those of an engine are filled with any prompts, others
    take whole sequences, shared out among the stages and halved."""
    tokens = rows.batch / rows.groups * rows.input_tokens
    if engine.stack.steady_pipeline:
        passes: Array = np.ceil(tokens / engine.stack.pass_tokens)
        return passes
    return _halved(rows, rows.input_tokens, engine.stack.pass_tokens)


def _token_passes(rows: Served, engine: Engine) -> Array:
    if engine.stack.steady_pipeline:
        passes: Array = np.minimum(rows.pp, np.maximum(rows.batch / rows.groups, 1.0))
        return passes
    return _halved(rows, np.ones_like(rows.batch), engine.stack.pass_tokens)


def _halved(rows: Served, tokens: Array, limit: int) -> Array:
    """How many micro batches: a p-th of the batch where that divides it, halved while that is even
    and has more tokens than the limit."""
    each = np.where(np.mod(rows.batch, rows.pp) == 0, rows.batch / rows.pp, rows.batch)
    for _ in range(int(np.log2(np.max(each))) + 1):
        each = np.where((each * tokens > limit) & (np.mod(each, 2) == 0), each / 2, each)
    count: Array = rows.batch / each
    return count
