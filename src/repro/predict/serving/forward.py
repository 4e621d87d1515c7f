"""One forward pass by operator: what each takes, moves and sends, and what binds it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from repro.catalog.models.layers import (
    Attention,
    Linear,
    Operation,
    attentions,
    decoder_layer,
    elements,
    messages,
    products,
)
from repro.collectives.definitions import bus_factor
from repro.predict.fused.parameters import read_fused, sustained_name
from repro.predict.fused.run import peak_flops
from repro.predict.operators.kernels import AttentionCosts, decoding_s, product_s
from repro.predict.operators.measured import (
    on_device_s,
    operator_costs,
    product_alone_s,
    product_multiplier,
    rates,
)
from repro.predict.serving.served import BYTES, Engine, Served
from repro.predict.workload import Array

Kind = Literal["product", "prompt attention", "decoding", "elements", "collective", "message"]

_HALF_BYTES = 2
# Scores that are written, and read and written by the softmax, and read again.
_SCORES = 4
_SHORTEST_CONTEXT = 1.0
_AT_PEAK = AttentionCosts(
    efficiency=1.0, short_tokens=0.0, narrow_loss=0.0, memory_efficiency=1.0, launch_s=0.0
)


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
    launches
        Kernels of one.
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
    doublings: Array
    hops: Array


@dataclass(frozen=True)
class ForwardPass:
    """What a forward pass takes in, for each row.

    `sequences` and `tokens` are those of one group of GPUs, `context` what each sequence looks
    at, with `prompt` all of its own tokens.
    """

    sequences: Array
    tokens: Array
    context: Array
    prompt: bool


def prompt_pass(rows: Served, passes: Array) -> ForwardPass:
    """All prompts, in so many passes."""
    sequences = rows.batch / rows.groups / passes
    return ForwardPass(sequences, sequences * rows.input_tokens, rows.input_tokens, prompt=True)


def token_pass(rows: Served, passes: Array, written: Array | float = 0.5) -> ForwardPass:
    """One new token of each sequence, in so many passes, when a part of the output is written."""
    sequences = rows.batch / rows.groups / passes
    context = np.maximum(rows.input_tokens + written * rows.output_tokens, _SHORTEST_CONTEXT)
    return ForwardPass(sequences, sequences, context, prompt=False)


def forward(rows: Served, engine: Engine, one: ForwardPass) -> list[Part]:
    """The operators of a pass."""
    layer = decoder_layer(rows)
    return [
        *_products(rows, engine, one),
        *(_attention(of, rows, engine, one) for of in attentions(layer)),
        _elements(layer, rows, engine, one),
        *_casts(layer, rows, engine, one),
        *_collectives(layer, rows, engine, one),
    ]


def _part(name: str, kind: Kind, count: Array, time_s: Array, **others: Array | float) -> Part:
    zero = np.zeros_like(count)
    work = ("flops", "memory_bytes", "link_bytes", "nic_bytes")
    names = ("fixed_s", "read_s", *work, "doublings", "hops")
    usual: dict[str, Array | float] = {"launches": 1.0, **dict.fromkeys(names, 0.0), **others}
    given = {key: zero + value for key, value in usual.items()}
    return Part(name, kind, count, time_s + zero, **given)


def _products(rows: Served, engine: Engine, one: ForwardPass) -> Iterator[Part]:
    """Linear layers, experts in groups of one shape, and the logits of sequences' last tokens."""
    for linear in products(decoder_layer(rows.as_held())):
        if linear.experts is not None:
            count = np.where(linear.experts > 0, rows.layers, 0.0)
            if count.any():
                yield _experts(linear, rows, engine, one.tokens, count)
            continue
        count = np.where(linear.parameters > 0, rows.layers, 0.0)
        if count.any():
            n, k = linear.divided(rows.tp)
            yield _product(linear.name, engine, one.tokens, n, k, count, engine.weights)
    sequences, once = np.maximum(one.sequences, 1.0), np.ones_like(rows.hidden)
    yield _product("logits", engine, sequences, rows.vocab / rows.tp, rows.hidden, once, "bf16")


def _product(
    name: str, engine: Engine, m: Array, n: Array, k: Array, count: Array, weights: str
) -> Part:
    m, n, k = (np.maximum(size, 1.0) for size in np.broadcast_arrays(m, n, k))
    time_s = product_alone_s(pd.DataFrame({"m": m, "n": n, "k": k}), weights, engine.device)
    flops = 2 * m * n * k
    moved = BYTES[weights] * k * (m + n) + _HALF_BYTES * m * n
    return _part(
        name,
        "product",
        count,
        _sustained(engine, weights, flops, time_s),
        flops=flops,
        memory_bytes=moved,
    )


def _sustained(engine: Engine, weights: str, flops: Array, time_s: Array) -> Array:
    """What power takes from bursts of products that computing limits, as training runs showed."""
    known = read_fused().parameters.sustained
    of_all = [value for name, value in known.items() if name.endswith(weights)]
    kept = known.get(sustained_name(engine.device.generation, weights), float(np.mean(of_all)))
    share = np.minimum(flops / peak_flops(engine.device, weights) / time_s, 1.0)
    slowed: Array = time_s * (1 + (1 / kept - 1) * share)
    return slowed


def _experts(linear: Linear, rows: Served, engine: Engine, tokens: Array, count: Array) -> Part:
    """Price the products of the experts that some token chose, each with its even share of tokens.

    Of E experts, n tokens with k choices each meet E (1 - (1 - k/E)^n) on average.
    """
    experts, chosen = np.maximum(linear.experts, 1.0), np.maximum(linear.chosen, 1.0)
    routed = tokens * rows.groups
    met = experts * (1 - (1 - chosen / experts) ** np.maximum(routed, 1.0))
    local = np.maximum(met / rows.ep, 1.0)
    m = np.maximum(routed * chosen / met, 1.0)
    # Tensor-parallel ranks divide an expert where there are more of them than of its holders.
    parts = np.maximum(rows.tp / rows.ep, 1.0)
    n, k = (np.maximum(size, 1.0) for size in linear.divided(parts))
    device, weights = engine.device, engine.weights
    time_s = product_s(m, n, k, BYTES[weights], product_multiplier(weights, device), local)
    flops = 2 * m * n * k * local
    moved = local * (BYTES[weights] * k * (m + n) + _HALF_BYTES * m * n)
    slowed = _sustained(engine, weights, flops, time_s)
    return _part(linear.name, "product", count, slowed, flops=flops, memory_bytes=moved)


def _attention(of: Attention, rows: Served, engine: Engine, one: ForwardPass) -> Part:
    """Attention of whole prompts, or of a token of each sequence to its cache."""
    heads, kv_heads = of.heads / rows.tp, np.maximum(of.kv_heads / rows.tp, 1.0)
    d, sequences = of.mean_dim, np.maximum(one.sequences, 1.0)
    # Parts of a prompt take their part of it.
    share = np.minimum(one.sequences, 1.0)
    windowed = np.minimum(of.window, one.context)
    seen = np.where(
        of.window > 0, one.context + of.windowed * (windowed - one.context), one.context
    )
    table = pd.DataFrame(
        {"batch": sequences, "heads": heads, "kv_heads": kv_heads, "head_dim": d}
        | {"seq": one.context, "kv_len": seen}
    )
    cache = 2 * sequences * kv_heads * d
    if one.prompt:
        time_s = on_device_s("attention_prefill", table, ("bf16",), engine.device)
        # Of the scores that causality leaves; every other layer has the window.
        near = windowed / one.context
        looked_at = np.where(of.window > 0, 1 - of.windowed * (1 - near * (2 - near)), 1.0)
        scores = _HALF_BYTES * sequences * heads * one.context**2
        stored = _SCORES * scores / _memory_rate(engine) if engine.stack.stores_scores else 0.0
        return _part(
            "attention",
            "prompt attention",
            rows.layers * share,
            (time_s + stored) * looked_at,
            flops=2 * sequences * heads * one.context**2 * d * looked_at,
            memory_bytes=_HALF_BYTES * one.context * (2 * sequences * heads * d + cache),
        )
    own = engine.stack.own_decoding
    reading = rates(engine.device, "attention_decode", "bf16")
    cache_bytes = BYTES[engine.cache] * cache * seen
    read_s = decoding_s(sequences, seen, kv_heads, d, BYTES[engine.cache], reading, _AT_PEAK)
    waited_s = _waited_s(engine, sequences * kv_heads, cache_bytes, read_s)
    if engine.stack.splits_unshared:
        waited_s = np.where(heads > kv_heads, waited_s, 0.0)
    measured = (
        0.0 if own else on_device_s("attention_decode", table, (engine.cache,), engine.device)
    )
    return _part(
        "attention",
        "decoding",
        rows.layers,
        measured + np.zeros_like(read_s),
        fixed_s=_start_s(engine) + waited_s if own else 0.0,
        read_s=read_s if own else 0.0,
        flops=4 * sequences * heads * seen * d,
        memory_bytes=cache_bytes,
    )


def _waited_s(engine: Engine, heads: Array, cache_bytes: Array, read_s: Array) -> Array:
    """What caches of so many heads, one after another on each multiprocessor, take longer than
    reading them all does."""
    stack = engine.stack
    alone_s = stack.head_s + np.zeros_like(read_s)
    if stack.head_gbytes_per_s is not None:
        alone_s = alone_s + cache_bytes / heads / (stack.head_gbytes_per_s * 1e9)
    rounds = np.ceil(heads / engine.device.multiprocessors)
    waited: Array = np.maximum(rounds * alone_s - read_s / engine.costs.reading, 0.0)
    return waited


def _start_s(engine: Engine) -> float:
    """Start and end of a kernel, as of a product."""
    return operator_costs("gemm", engine.device, "bf16").costs["launch_s"]


def _memory_rate(engine: Engine) -> float:
    """Bytes per second of element-wise kernels."""
    return engine.device.memory_gbytes_per_s * 1e9 * read_fused().parameters.memory_efficiency


def _elements(layer: list[Operation], rows: Served, engine: Engine, one: ForwardPass) -> Part:
    """Norms, residual sums, rotary embeddings and activations; each kernel has a start and an end,
    as a product has. Products of experts gather and scatter their tokens themselves."""
    per_token = sum(
        kernel.forward_bytes * kernel.width / (rows.tp if kernel.splits == "width" else 1.0)
        for kernel in elements(layer)
        if not kernel.routed
    )
    moved = one.tokens * per_token
    kernels = float(engine.stack.elementwise)
    floor = _start_s(engine)
    return _part(
        "element-wise",
        "elements",
        rows.layers,
        moved / _memory_rate(engine),
        fixed_s=kernels * floor,
        flops=moved / _HALF_BYTES,
        memory_bytes=moved,
        launches=kernels,
    )


def _casts(
    layer: list[Operation], rows: Served, engine: Engine, one: ForwardPass
) -> Iterator[Part]:
    """Casts of what products take in, where a software casts it by itself."""
    if BYTES[engine.weights] == _HALF_BYTES or not engine.stack.casts:
        return
    split = [kernel.outputs for kernel in elements(layer) if kernel.splits == "width"]
    whole = [kernel.outputs for kernel in elements(layer) if kernel.splits == "sequence"]
    attended = [of.output_width for of in attentions(layer)]
    taken_in = sum(whole) + sum(split + attended) / rows.tp
    moved = one.tokens * (_HALF_BYTES + BYTES[engine.weights]) * taken_in
    kernels = float(engine.stack.casts)
    yield _part(
        "casts",
        "elements",
        rows.layers,
        moved / _memory_rate(engine),
        fixed_s=kernels * _start_s(engine),
        memory_bytes=moved,
        launches=kernels,
    )


def _collectives(
    layer: list[Operation], rows: Served, engine: Engine, one: ForwardPass
) -> Iterator[Part]:
    hidden = _HALF_BYTES * one.tokens * rows.hidden
    if (rows.tp > 1).any():
        split = rows.tp > 1
        count = len(messages(layer, "tensor")) * rows.layers * split
        yield _among("all-reduce", "all_reduce", rows.tp, hidden, count, engine)
        logits = _HALF_BYTES * np.maximum(one.sequences, 1.0) * rows.vocab
        yield _among("logits' all-gather", "all_gather", rows.tp, logits, 1.0 * split, engine)
    apart = (rows.groups > 1) & (rows.experts > 0)
    for message in messages(layer, "expert") if apart.any() else ():
        sent = _HALF_BYTES * one.tokens * message.width / rows.tp * message.chosen
        count = 2 * rows.layers * apart
        yield _among("experts' exchange", "alltoall", rows.ep, sent, count, engine)
    if (rows.pp > 1).any():
        device = engine.device
        inside = rows.tp * rows.pp <= device.domain_gpus
        rate = np.where(inside, device.link_gbytes_per_s * 1e9, device.nic_gbps * 1e9 / 8)
        sent = hidden / rows.tp
        yield _part(
            "messages between stages",
            "message",
            rows.pp - 1,
            sent / rate,
            link_bytes=sent * inside,
            nic_bytes=sent * ~inside,
            hops=1.0,
        )


def _among(
    name: str, collective: str, ranks: Array, size_bytes: Array, count: Array, engine: Engine
) -> Part:
    """A collective of ranks that fill domains: inside, as measured there; then between them, each
    rank of a domain through its own port, two messages for each doubling of domains."""
    device = engine.device
    inside = np.clip(ranks, 2.0, device.domain_gpus)
    domains = np.maximum(ranks / inside, 1.0)
    table = pd.DataFrame({"size_bytes": np.maximum(size_bytes, 1.0), "ranks": inside})
    table["collective"] = collective
    time_s = on_device_s("nccl", table, ("fp16", collective), device)
    if collective == "all_reduce" and engine.stack.reduces_at_once:
        links = device.link_gbytes_per_s * 1e9 * read_fused().parameters.link_efficiency
        at_once = engine.costs.at_once_s + (inside - 1) * size_bytes / links
        time_s = np.minimum(time_s, at_once)
    nic = device.nic_gbps * 1e9 / 8 * read_fused().parameters.fabric_efficiency
    # What is exchanged leaves each rank as it is; of a sum or a gather a rank carries a part on.
    carried = size_bytes if collective == "alltoall" else size_bytes / inside
    called = collective.replace("alltoall", "all_to_all")
    between = bus_factor(called, domains) * carried
    return _part(
        name,
        "collective",
        count,
        time_s + between / nic,
        link_bytes=bus_factor(called, inside) * size_bytes,
        nic_bytes=between,
        doublings=np.log2(np.maximum(ranks, 2.0)),
        hops=2 * np.log2(domains),
    )


def bound(part: Part, engine: Engine) -> Array:
    """What most of an operator's time goes to, for each row: compute, memory, network or launch.

    The first three are what its work takes at the data sheet's peaks; where none of them is a
    quarter of its time, it is its launch.
    """
    device = engine.device
    precision = engine.weights if part.kind == "product" and part.name != "logits" else "bf16"
    names = np.array(["compute", "memory", "network"])
    least = np.stack(
        [
            part.flops / peak_flops(device, precision),
            part.memory_bytes / (device.memory_gbytes_per_s * 1e9),
            part.link_bytes / (device.link_gbytes_per_s * 1e9)
            + part.nic_bytes / (device.nic_gbps * 1e9 / 8),
        ]
    )
    whole = part.time_s + part.fixed_s + part.read_s
    return np.where(least.max(axis=0) < whole / 4, "launch", names[least.argmax(axis=0)])
