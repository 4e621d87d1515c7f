"""Forward passes of serving and their operators: what each takes, moves and sends."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from repro.predict.serving.served import Served
from repro.predict.workload import Array

Kind = Literal["product", "prompt attention", "decoding", "elements", "collective", "message"]

_SHORTEST_CONTEXT = 1.0


@dataclass(frozen=True)
class Part:
    """One operator of a pass, of all layers and stages that a token goes through.

    Attributes
    ----------
    count
        How often it runs.
    time_s, fixed_s, read_s
        Of one: what scales with a software's efficiency, what does not, and what an attention of
        its own reads at the memory's full rate.
    flops, memory_bytes, link_bytes, nic_bytes
        Of one, on one GPU; what it puts on the GPU's links to others nearby, and on its port.
    launches, routings
        Kernels of one; sortings of tokens for experts.
    factors
        Names of the software's costs that multiply `time_s`.
    doublings, hops
        Of one collective: ranks that wait for each other, as powers of two; messages between nodes.
    """

    name: str
    kind: Kind
    count: Array
    time_s: Array
    fixed_s: Array
    read_s: Array
    flops: Array
    memory_bytes: Array
    link_bytes: Array
    nic_bytes: Array
    launches: Array
    routings: Array
    doublings: Array
    hops: Array
    factors: tuple[str, ...]


@dataclass(frozen=True)
class ForwardPass:
    """Inputs of a forward pass, for each row.

    `sequences` and `tokens` are those of one group of GPUs, `context` what each sequence looks
    at, with `prompt` all of its own tokens.
    """

    sequences: Array
    tokens: Array
    context: Array
    prompt: bool


def prompt_pass(rows: Served, passes: Array, others: Array | float = 0.0) -> ForwardPass:
    """Return the pass of prompts that are in so many passes, with new tokens of `others`."""
    sequences = rows.batch / rows.groups / passes
    tokens = sequences * rows.input_tokens + others
    return ForwardPass(sequences, tokens, rows.input_tokens, prompt=True)


def token_pass(rows: Served, passes: Array, written: Array | float = 0.5) -> ForwardPass:
    """One new token of each sequence, in so many passes, when a part of the output is written."""
    sequences = rows.batch / rows.groups / passes
    context = np.maximum(rows.input_tokens + written * rows.output_tokens, _SHORTEST_CONTEXT)
    return ForwardPass(sequences, sequences, context, prompt=False)


def make_part(
    name: str,
    kind: Kind,
    count: Array,
    time_s: Array,
    factors: tuple[str, ...] = (),
    **others: Array | float,
) -> Part:
    """Combine the work of an operator; what is not given is 0, of one kernel."""
    zero = np.zeros_like(count)
    work = ("flops", "memory_bytes", "link_bytes", "nic_bytes")
    names = ("fixed_s", "read_s", *work, "routings", "doublings", "hops")
    usual: dict[str, Array | float] = {"launches": 1.0, **dict.fromkeys(names, 0.0), **others}
    given = {key: zero + value for key, value in usual.items()}
    return Part(name, kind, count, time_s + zero, factors=factors, **given)
