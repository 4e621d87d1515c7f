"""Memory of a GPU that serves: weights, caches of keys and values, and what is left for them."""

import numpy as np

from repro.catalog.models.layers import (
    Operation,
    attentions,
    count_parameters,
    decoder_layer,
    layer_kinds,
    products,
)
from repro.errors import DoesNotFit
from repro.predict.fused.memory import FRAMEWORK_BYTES
from repro.predict.serving.served import CACHE_BYTES, FORMATS, Engine, Served
from repro.predict.workload import Array

_HALF_BYTES = 2
# What engines use of the memory, or of what weights leave of it; the rest is for what a pass needs
# beside weights and caches.
USABLE = 0.9


def weight_bytes(rows: Served, engine: Engine) -> Array:
    """Return the weights of the fullest stage of each GPU, tables in half precision."""
    kinds = [(count, _layer_bytes(layer, rows, engine)) for count, layer in _kinds(rows)]
    tables = np.where(rows.pp > 1, 1.0, 2.0) * rows.vocab * rows.hidden / rows.tp
    # The fullest stage has the heaviest kind of layer first.
    layers: Array = np.maximum(_filled(kinds, rows), _filled(kinds[::-1], rows))
    return layers + _HALF_BYTES * tables


def _kinds(rows: Served) -> list[tuple[Array, list[Operation]]]:
    return layer_kinds(rows.as_held())


def _layer_bytes(layer: list[Operation], rows: Served, engine: Engine) -> Array:
    """Return the linear layers of one layer on each GPU."""
    shared = count_parameters(products(layer), 0)
    experts = count_parameters(products(layer), rows.experts) - shared
    whole = [one.parameters for one in products(layer) if one.splits is None]
    copied = sum(whole) * (1 - 1 / rows.tp) if whole else 0.0
    of_experts = FORMATS[engine.weights].weight_bytes * experts / np.maximum(rows.ep, rows.tp)
    held: Array = FORMATS[engine.others].weight_bytes * (shared / rows.tp + copied) + of_experts
    return held


def _filled(kinds: list[tuple[Array, Array]], rows: Served) -> Array:
    """Sum the layers of one stage, as many as there are of the first kinds before the others."""
    left = np.ceil(rows.layers / rows.pp)
    total: Array = np.zeros_like(left)
    for count, layer_bytes in kinds:
        taken = np.minimum(count, left)
        total, left = total + taken * layer_bytes, left - taken
    return total


def cache_bytes(rows: Served, engine: Engine, tokens: Array) -> Array:
    """Keys and values of one sequence of so many tokens, on each GPU, in whole pages.

    Queries share `kv_heads`, which more GPUs than those hold twice, or one latent vector, which all
    hold. Layers with a window keep its tokens only. All kinds of layers have the same attention.
    """
    page = engine.stack.page_tokens
    elements: Array = np.zeros_like(rows.layers)
    for one in attentions(decoder_layer(rows)):
        near = np.minimum(tokens, one.window)
        seen = np.where(one.window > 0, tokens + one.windowed * (near - tokens), tokens)
        elements = elements + one.cached_width(rows.tp) * np.ceil(seen / page) * page
    total: Array = CACHE_BYTES[engine.cache] * np.ceil(rows.layers / rows.pp) * elements
    return total


def free_bytes(rows: Served, engine: Engine) -> Array:
    """What is left for caches."""
    whole, held = engine.device.memory_bytes, FRAMEWORK_BYTES + weight_bytes(rows, engine)
    left: Array = USABLE * (whole - held) if engine.stack.spares_rest else USABLE * whole - held
    return left


def largest_batch(rows: Served, engine: Engine) -> Array:
    """Sequences of all groups that run at once; 0 where not one's cache fits.

    An engine that reserves memory for whole answers counts with caches when they are longest,
    others with what they are on average.
    """
    longest = rows.input_tokens + rows.output_tokens
    usual = longest if engine.stack.reserves else rows.input_tokens + rows.output_tokens / 2
    free = np.maximum(free_bytes(rows, engine), 0.0)
    count = np.floor(free / cache_bytes(rows, engine, usual))
    count = np.where(cache_bytes(rows, engine, longest) > free, 0.0, count)
    fitting: Array = np.minimum(count, engine.stack.most_sequences) * rows.groups
    return fitting


def check_fits(rows: Served, engine: Engine) -> None:
    """Refuse a table none of whose rows fits; sequences beyond those that fit wait.

    Raises
    ------
    DoesNotFit
        The weights, or one sequence beside them, take more than the memory.
    """
    if (largest_batch(rows, engine) >= rows.groups).any():
        return
    at = int(np.argmax(free_bytes(rows, engine)))
    where, left = engine.device, free_bytes(rows, engine)[at]
    if left <= 0:
        raise DoesNotFit(
            f"{weight_bytes(rows, engine)[at] / 1e9:.0f} GB of weights on each {where.label} of "
            f"{where.memory_bytes / 1e9:.0f} GB; take more GPUs or a lower precision"
        )
    tokens = (rows.input_tokens + rows.output_tokens)[at]
    one = cache_bytes(rows, engine, rows.input_tokens + rows.output_tokens)[at]
    raise DoesNotFit(
        f"context of {tokens:.0f} tokens: its cache takes {one / 1e9:.3g} GB of each GPU, and "
        f"{left / 1e9:.3g} GB are left; take a shorter context or more GPUs"
    )
