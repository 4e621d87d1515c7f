"""One forward pass by operator: what each takes, moves and sends, and what binds it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repro.catalog.models.layers import (
    Attention,
    Operation,
    attentions,
    elements,
    layer_kinds,
    messages,
    products,
)
from repro.collectives.definitions import bus_factor
from repro.predict.fused.parameters import read_fused
from repro.predict.fused.run import OPERAND_BYTES, peak_flops
from repro.predict.operators.kernels import AttentionCosts, decoding_s
from repro.predict.operators.measured import (
    on_device_s,
    operator_costs,
    rates,
)
from repro.predict.serving.parts import ForwardPass, Part, make_part
from repro.predict.serving.products import price_experts, price_product
from repro.predict.serving.served import CACHE_BYTES, Engine, Served
from repro.predict.workload import Array

_HALF_BYTES = 2
# Ends of the names of operators, by kind of layer (`layer_kinds`).
_SUFFIXES = ("", ", dense layers")
# Barriers of a two-shot all-reduce over those of a one-shot one, and the largest buffer of either
# (vLLM's and TensorRT-LLM's kernels for all-reduces inside a node).
_TWO_SHOT_BARRIERS, _LARGEST_AT_ONCE = 1.5, 8 * 2**20
# Scores that are written, and read and written by the softmax, and read again.
_SCORES = 4
_AT_PEAK = AttentionCosts(
    efficiency=1.0, short_tokens=0.0, narrow_loss=0.0, memory_efficiency=1.0, launch_s=0.0
)


@dataclass(frozen=True)
class _Layers:
    """Layers of one kind: `count` of them, as they compute and as GPUs hold them.

    Names of their operators end with `suffix`.
    """

    count: Array
    layer: list[Operation]
    held: list[Operation]
    suffix: str


def forward(rows: Served, engine: Engine, one: ForwardPass) -> list[Part]:
    """List the operators of a pass."""
    kinds = [
        _Layers(count, layer, held, suffix)
        for (count, layer), (_, held), suffix in zip(
            layer_kinds(rows), layer_kinds(rows.as_held()), _SUFFIXES, strict=False
        )
    ]
    return [
        *(part for of in kinds for part in _products(of, rows, engine, one)),
        _logits(rows, engine, one),
        *(_attention(of, own, rows, engine, one) for of in kinds for own in attentions(of.layer)),
        *(_elements(of, rows, engine, one) for of in kinds),
        *(part for of in kinds for part in _casts(of, rows, engine, one)),
        *_collectives(kinds, rows, engine, one),
    ]


def _products(of: _Layers, rows: Served, engine: Engine, one: ForwardPass) -> Iterator[Part]:
    """Price linear layers, experts in groups of one shape."""
    for linear in products(of.held):
        there = linear.parameters if linear.experts is None else linear.experts
        count = np.where(there > 0, of.count, 0.0)
        if not count.any():
            continue
        name = linear.name + of.suffix
        if linear.experts is not None:
            yield price_experts(name, linear, rows, engine, one.tokens, count)
        else:
            n, k = linear.divided(rows.tp)
            yield price_product(name, engine, one.tokens, n, k, count, engine.others)


def _logits(rows: Served, engine: Engine, one: ForwardPass) -> Part:
    """Price the logits of sequences' last tokens."""
    sequences, once = np.maximum(one.sequences, 1.0), np.ones_like(rows.hidden)
    return price_product(
        "logits", engine, sequences, rows.vocab / rows.tp, rows.hidden, once, "bf16"
    )


def _attention(
    layers: _Layers, of: Attention, rows: Served, engine: Engine, one: ForwardPass
) -> Part:
    """Attention of whole prompts, or of a token of each sequence to its cache."""
    heads, sequences = of.heads / rows.tp, np.maximum(one.sequences, 1.0)
    windowed = np.minimum(of.window, one.context)
    seen = np.where(
        of.window > 0, one.context + of.windowed * (windowed - one.context), one.context
    )
    name, d = f"attention{layers.suffix}", of.mean_dim
    if one.prompt:
        kv_heads = np.maximum(of.kv_heads / rows.tp, 1.0)
        table = pd.DataFrame(
            {"batch": sequences, "heads": heads, "kv_heads": kv_heads, "head_dim": d}
            | {"seq": one.context, "kv_len": seen}
        )
        time_s = on_device_s("attention_prefill", table, ("bf16",), engine.device)
        # Of the scores that causality leaves, layers with a window have those within it.
        near = windowed / one.context
        looked_at = np.where(of.window > 0, 1 - of.windowed * (1 - near * (2 - near)), 1.0)
        scores = _HALF_BYTES * sequences * heads * one.context**2
        stored = _SCORES * scores / _memory_rate(engine) if engine.stack.stores_scores else 0.0
        moved = 2 * sequences * heads * d + 2 * sequences * kv_heads * d
        return make_part(
            name,
            "prompt attention",
            # Parts of a prompt take their part of it.
            layers.count * np.minimum(one.sequences, 1.0),
            (time_s + stored) * looked_at,
            flops=2 * sequences * heads * one.context**2 * d * looked_at,
            memory_bytes=_HALF_BYTES * one.context * moved,
        )
    # All heads read one latent vector, of whose first elements values are sums.
    latent = of.latent_keys > 0
    kv_heads = np.where(latent, 1.0, np.maximum(of.kv_heads / rows.tp, 1.0))
    cached = of.cached_width(rows.tp)
    d, cached_d = (
        np.where(latent, (of.latent_keys + of.latent_values) / 2, d),
        cached / 2 / kv_heads,
    )
    flops = 4 * sequences * heads * seen * d
    table = pd.DataFrame(
        {"batch": sequences, "heads": heads, "kv_heads": kv_heads, "head_dim": cached_d}
        | {"seq": one.context, "kv_len": seen}
    )
    own = engine.stack.own_decoding
    reading = rates(engine.device, "attention_decode", "bf16")
    cache_bytes = CACHE_BYTES[engine.cache] * sequences * cached * seen
    read_s = decoding_s(
        sequences, seen, kv_heads, cached_d, CACHE_BYTES[engine.cache], reading, _AT_PEAK
    )
    waited_s = _waited_s(engine, sequences * kv_heads, cache_bytes, read_s)
    if engine.stack.splits_unshared:
        waited_s = np.where(heads > kv_heads, waited_s, 0.0)
    measured = (
        0.0 if own else on_device_s("attention_decode", table, (engine.cache,), engine.device)
    )
    # So many heads multiply what is read once that computing may take longer.
    computing_s = flops / (_attention_efficiency(engine) * engine.device.peak_flops)
    longer_s = np.where(latent, np.maximum(computing_s - (read_s if own else measured), 0.0), 0.0)
    return make_part(
        name,
        "decoding",
        layers.count,
        measured + np.zeros_like(read_s),
        fixed_s=longer_s + (_start_s(engine) + waited_s if own else 0.0),
        read_s=read_s if own else 0.0,
        flops=flops,
        memory_bytes=cache_bytes,
    )


def _attention_efficiency(engine: Engine) -> float:
    """Return the part of the peak that attention reaches in prompts."""
    return operator_costs("attention_prefill", engine.device, "bf16").costs["efficiency"]


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


def _elements(of: _Layers, rows: Served, engine: Engine, one: ForwardPass) -> Part:
    """Norms, residual sums, rotary embeddings and activations; each kernel has a start and an end,
    as a product has. Products of experts gather and scatter their tokens themselves."""
    per_token = sum(
        kernel.forward_bytes * kernel.width / (rows.tp if kernel.splits == "width" else 1.0)
        for kernel in elements(of.layer)
        if not kernel.routed
    )
    moved = one.tokens * per_token
    kernels = float(engine.stack.elementwise)
    floor = _start_s(engine)
    return make_part(
        f"element-wise{of.suffix}",
        "elements",
        of.count,
        moved / _memory_rate(engine),
        ("traffic",),
        fixed_s=kernels * floor,
        flops=moved / _HALF_BYTES,
        memory_bytes=moved,
        launches=kernels,
    )


def _casts(of: _Layers, rows: Served, engine: Engine, one: ForwardPass) -> Iterator[Part]:
    """Casts of what products take in, where a software casts it by itself."""
    cast_bytes = OPERAND_BYTES[engine.units(engine.others)]
    if cast_bytes == _HALF_BYTES or not engine.stack.casts:
        return
    split = [kernel.outputs for kernel in elements(of.layer) if kernel.splits == "width"]
    whole = [kernel.outputs for kernel in elements(of.layer) if kernel.splits == "sequence"]
    attended = [one.output_width for one in attentions(of.layer)]
    taken_in = sum(whole) + sum(split + attended) / rows.tp
    moved = one.tokens * (_HALF_BYTES + cast_bytes) * taken_in
    kernels = float(engine.stack.casts)
    yield make_part(
        f"casts{of.suffix}",
        "elements",
        of.count,
        moved / _memory_rate(engine),
        ("traffic",),
        fixed_s=kernels * _start_s(engine),
        memory_bytes=moved,
        launches=kernels,
    )


def _collectives(
    kinds: list[_Layers], rows: Served, engine: Engine, one: ForwardPass
) -> Iterator[Part]:
    hidden = _HALF_BYTES * one.tokens * rows.hidden
    if (rows.tp > 1).any():
        split = rows.tp > 1
        for of in kinds:
            count = len(messages(of.layer, "tensor")) * of.count * split
            name = f"all-reduce{of.suffix}"
            yield _among(name, "all_reduce", rows.tp, hidden, count, engine)
        logits = _HALF_BYTES * np.maximum(one.sequences, 1.0) * rows.vocab
        yield _among("logits' all-gather", "all_gather", rows.tp, logits, 1.0 * split, engine)
    apart = (rows.groups > 1) & (rows.experts > 0)
    for of in kinds if apart.any() else ():
        for message in messages(of.layer, "expert"):
            count = 2 * of.count * apart
            token_bytes = _HALF_BYTES * one.tokens * message.width / rows.tp
            if engine.stack.gathers_tokens:
                gathered = token_bytes * rows.ep
                yield _among("experts' exchange", "all_gather", rows.ep, gathered, count, engine)
            else:
                sent = token_bytes * message.chosen
                yield _among("experts' exchange", "alltoall", rows.ep, sent, count, engine)
    if (rows.pp > 1).any():
        device = engine.device
        inside = rows.tp * rows.pp <= device.domain_gpus
        rate = np.where(inside, device.link_gbytes_per_s * 1e9, device.nic_gbps * 1e9 / 8)
        sent = hidden / rows.tp
        yield make_part(
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
    rank of a domain through its own port, two messages for each doubling of domains. GPUs without
    links have ports only."""
    device = engine.device
    inside = np.minimum(np.maximum(ranks, 2.0), device.domain_gpus)
    domains = np.maximum(ranks / inside, 1.0)
    pairs = np.maximum(inside, 2.0)
    table = pd.DataFrame({"size_bytes": np.maximum(size_bytes, 1.0), "ranks": pairs})
    table["collective"] = collective
    time_s = on_device_s("nccl", table, ("fp16", collective), device)
    if collective == "all_reduce" and engine.stack.reduces_at_once:
        links = device.link_gbytes_per_s * 1e9 * read_fused().parameters.link_efficiency
        one_shot = engine.costs.at_once_s + (inside - 1) * size_bytes / links
        # Each rank sums up its part, then all gather the sums, with one barrier more.
        moved = bus_factor(collective, inside) * size_bytes
        two_shot = _TWO_SHOT_BARRIERS * engine.costs.at_once_s + moved / links
        small = np.where(size_bytes <= _LARGEST_AT_ONCE, np.minimum(one_shot, two_shot), np.inf)
        time_s = np.minimum(time_s, small)
    nic = device.nic_gbps * 1e9 / 8 * read_fused().parameters.fabric_efficiency
    # What is exchanged leaves each rank as it is; of a sum or a gather a rank carries a part on.
    carried = size_bytes if collective == "alltoall" else size_bytes / inside
    called = collective.replace("alltoall", "all_to_all")
    between = bus_factor(called, domains) * carried
    return make_part(
        name,
        "collective",
        count,
        np.where(inside > 1, time_s, 0.0) + between / nic,
        ("collectives",),
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
    held = engine.weights if "experts" in part.name else engine.others
    multiplied = part.kind == "product" and part.name != "logits"
    precision = engine.units(held) if multiplied else "bf16"
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
