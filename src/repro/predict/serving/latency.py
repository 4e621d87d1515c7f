"""How long tokens take: passes of operators and their software, and what follows for requests."""

from dataclasses import dataclass, replace

import numpy as np

from repro.catalog.systems.serving import ServingCosts
from repro.predict.serving.forward import forward
from repro.predict.serving.memory import largest_batch
from repro.predict.serving.parts import Part, prompt_pass, token_pass
from repro.predict.serving.served import Engine, Served
from repro.predict.workload import Array


@dataclass(frozen=True)
class RequestPasses:
    """The operators of prompts and of one new token, and how often each goes through.

    Kept apart from their times, because a software's costs change those only. `rows` have the
    sequences that run at once; all of them are `waves` times as many, of which the others wait.
    """

    rows: Served
    prompts: list[Part]
    prompt_passes: Array
    tokens: list[Part]
    token_passes: Array
    waves: Array


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
    step_s
        One token of each sequence that runs, without prompts.
    prompt_s
        One prompt, in addition to the tokens that its passes also write.
    """

    first_token_s: Array
    output_token_s: Array
    total_s: Array
    tokens_per_s_per_gpu: Array
    step_s: Array
    prompt_s: Array


def passes(rows: Served, engine: Engine) -> RequestPasses:
    """List the operators of rows, of as many sequences as run at once.

    In an engine, sequences come and go, and passes that have prompts also write the next tokens of
    the sequences that run.
    """
    requested, held = rows.batch, np.maximum(largest_batch(rows, engine), rows.groups)
    rows = replace(rows, batch=np.minimum(requested, held))
    for_tokens = _token_passes(rows, engine)
    for_prompts, others = _prompt_passes(rows, engine, for_tokens)
    return RequestPasses(
        rows,
        forward(rows, engine, prompt_pass(rows, for_prompts, others)),
        for_prompts,
        forward(rows, engine, token_pass(rows, for_tokens)),
        for_tokens,
        requested / rows.batch,
    )


def latency(of: RequestPasses, engine: Engine) -> Latency:
    """Times of requests, from their operators and the software's costs."""
    rows, costs, p = of.rows, engine.costs, of.rows.pp
    one_pass, token_pass_s = pass_s(of.prompts, costs), pass_s(of.tokens, costs)
    sequences = rows.batch / rows.groups
    software = costs.step_s + costs.sequence_s * sequences
    if not engine.stack.steady_pipeline:
        # A stage is a p-th of a pass, and stages work at the same time.
        prompts = one_pass * (of.prompt_passes + p - 1) / p + software
        token = token_pass_s * (of.token_passes + p - 1) / p + software
        total = prompts + (rows.output_tokens - 1) * token
        rate = rows.batch * rows.output_tokens / total / rows.gpus
        return Latency(prompts, token, of.waves * total, rate, token, prompts / rows.batch)
    own = one_pass * np.ceil(rows.input_tokens / engine.stack.pass_tokens) + software
    # Other stages wait for the last one, which also has the logits.
    one_pass = one_pass + (of.token_passes - 1) * _logits_s(of.prompts, costs)
    token_pass_s = token_pass_s + (of.token_passes - 1) * _logits_s(of.tokens, costs)
    # Passes with prompts write tokens too; of those tokens only attention is yet to be added.
    attention_s = pass_s([part for part in of.tokens if part.kind == "decoding"], costs)
    steps, mixed = rows.output_tokens * of.token_passes, of.prompt_passes
    alone = np.maximum(steps - mixed, 0.0)
    computing = mixed * one_pass + steps * attention_s + alone * (token_pass_s - attention_s)
    waiting = 1 + costs.straggling * np.log2(rows.tp) + costs.apart * np.log2(rows.groups)
    # Stages work on as many passes at the same time; where there are fewer, stages wait.
    computing = waiting * computing / of.token_passes
    # Hosts of all stages take part in each pass, and pass on the tokens of its sequences.
    software = costs.step_s * of.token_passes
    software = software + (costs.sequence_s + costs.relay_s * np.log2(p)) * sequences
    all_steps = (mixed + alone) / of.token_passes
    total = computing + all_steps * software
    rate = rows.batch * rows.output_tokens / total / rows.gpus
    queued = (of.waves - 1) * total
    step = waiting * token_pass_s + software
    prompt = (total - all_steps * step) / rows.batch
    return Latency(queued + own, total / rows.output_tokens, of.waves * total, rate, step, prompt)


def _logits_s(parts: list[Part], costs: ServingCosts) -> Array:
    return pass_s([part for part in parts if part.name.startswith("logits")], costs)


def part_s(part: Part, costs: ServingCosts) -> Array:
    """All of an operator in a pass, with what the software adds to it."""
    factor = np.prod([getattr(costs, name) for name in part.factors])
    one = (
        part.fixed_s
        + factor * part.time_s
        + part.read_s / costs.reading
        + costs.gap_s * part.launches
        + costs.routing_s * part.routings
        + costs.arrival_s * part.doublings
        + costs.hop_s * part.hops
    )
    seconds: Array = part.count * one
    return seconds


def pass_s(parts: list[Part], costs: ServingCosts) -> Array:
    """All operators of a pass, one after another."""
    seconds: Array = np.sum([part_s(part, costs) for part in parts], axis=0)
    return seconds


def _prompt_passes(rows: Served, engine: Engine, token_passes: Array) -> tuple[Array, Array]:
    """Return the passes that all prompts are in, and the new tokens of other sequences in each.

    A pass has `pass_tokens` or fewer. An engine takes a prompt into the next pass when a sequence
    ends: into one of its own, or, where several end at a step, into that of all steps. Others take
    whole sequences, shared out among the stages and halved.
    """
    if not engine.stack.steady_pipeline:
        return _halved(rows, rows.input_tokens, engine.stack.pass_tokens), np.zeros_like(rows.batch)
    sequences = rows.batch / rows.groups
    steps = rows.output_tokens * token_passes
    fewest = np.ceil(sequences * rows.input_tokens / prompt_room(rows, engine, token_passes))
    passes: Array = np.maximum(np.minimum(sequences, steps), fewest)
    return passes, sequences / token_passes * np.minimum(steps / passes, 1.0)


def prompt_room(rows: Served, engine: Engine, token_passes: Array) -> Array:
    """Return the tokens of prompts that a pass of one group takes beside those of sequences."""
    running = rows.batch / rows.groups / token_passes
    room: Array = np.maximum(engine.stack.pass_tokens - running, engine.stack.pass_tokens / 2)
    return room


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
