"""Products of tokens and weights by format: what they take, read and compute."""

from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.models.layers import Linear
from repro.predict.fused.parameters import read_fused, sustained_share
from repro.predict.fused.run import OPERAND_BYTES, peak_flops
from repro.predict.operators.kernels import product_s
from repro.predict.operators.measured import on_device_s, product_multiplier
from repro.predict.serving.parts import Part, make_part
from repro.predict.serving.served import FORMATS, Engine, Served
from repro.predict.workload import Array

_HALF_BYTES = 2
# Generations whose products in fp4 are slower than those in half precision promise.
_FP4_MEASURED = ("blackwell", "blackwell-ultra")


def price_product(
    name: str, engine: Engine, m: Array, n: Array, k: Array, count: Array, weights: str
) -> Part:
    """Price a product of (m, k) tokens and (k, n) weights in a format."""
    m, n, k = (np.maximum(size, 1.0) for size in np.broadcast_arrays(m, n, k))
    if weights == "bf16":
        time_s = on_device_s(
            "gemm", pd.DataFrame({"m": m, "n": n, "k": k}), ("bf16",), engine.device
        )
    else:
        time_s = _multiplied_s(engine, weights, m, n, k)
    flops = 2 * m * n * k
    moved = _operand_bytes(engine, weights, m, n) * k * (m + n) + _HALF_BYTES * m * n
    return make_part(
        name,
        "product",
        count,
        _sustained(engine, weights, flops, time_s),
        _factors(engine, weights),
        flops=flops,
        memory_bytes=moved,
    )


def _factors(engine: Engine, weights: str) -> tuple[str, ...]:
    """Name the software's costs that multiply a product of weights in a format."""
    narrow = engine.units(weights) == "nvfp4" and engine.device.generation in _FP4_MEASURED
    return ("products", "fp4") if narrow else ("products",)


def _operand_bytes(engine: Engine, weights: str, m: Array, n: Array) -> Array:
    """Bytes of an element of (m, k) tokens and (k, n) weights on average."""
    tokens = OPERAND_BYTES[engine.units(weights)]
    mean: Array = (tokens * m + FORMATS[weights].weight_bytes * n) / (m + n)
    return mean


def _multiplied_s(
    engine: Engine, weights: str, m: Array, n: Array, k: Array, batch: Any = 1.0
) -> Array:
    """Seconds of `batch` products of tokens with weights in a format, by half precision's costs."""
    on = product_multiplier(engine.units(weights), engine.device)
    return product_s(m, n, k, _operand_bytes(engine, weights, m, n), on, batch)


def _sustained(engine: Engine, weights: str, flops: Array, time_s: Array) -> Array:
    """Slow bursts of products that computing limits down to the clocks that training sustains."""
    units = engine.units(weights)
    kept = sustained_share(read_fused().parameters, engine.device.generation, units)
    share = np.minimum(flops / peak_flops(engine.device, units) / time_s, 1.0)
    slowed: Array = time_s * (1 + (1 / kept - 1) * share)
    return slowed


def price_experts(
    name: str, linear: Linear, rows: Served, engine: Engine, tokens: Array, count: Array
) -> Part:
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
    weights = engine.weights
    time_s = _multiplied_s(engine, weights, m, n, k, local)
    flops = 2 * m * n * k * local
    moved = local * (_operand_bytes(engine, weights, m, n) * k * (m + n) + _HALF_BYTES * m * n)
    slowed = _sustained(engine, weights, flops, time_s)
    return make_part(
        name,
        "product",
        count,
        slowed,
        (*_factors(engine, weights), "experts"),
        flops=flops,
        memory_bytes=moved,
        # The products of a layer have their tokens sorted once.
        routings=1.0 if linear.splits == "outputs" else 0.0,
    )
