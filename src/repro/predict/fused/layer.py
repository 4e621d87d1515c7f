"""One layer's passes over a micro batch: products, attention, element-wise work, communication."""

from dataclasses import dataclass, fields

import numpy as np

from repro.catalog.models.layers import (
    Operation,
    attentions,
    elements,
    messages,
    products,
)
from repro.predict.fused.parameters import (
    FusedParameters,
    attention_costs,
    by_software,
    of_stack,
    product_costs,
)
from repro.predict.fused.run import Run, visible_share
from repro.predict.operators.kernels import Rates, attention_s, multiplier, product_s
from repro.predict.workload import Array

_HALF_BYTES = 2
# A backward pass of fused attention has five products where the forward pass has two (Dao, 2023).
_ATTENTION_BACKWARD_FLOPS = 2.5
# Casting an operand: read in half precision, written as it is and transposed, for the two products
# that take it.
_CAST_BYTES = 4
# Bytes per element of what an adapter (LoRA) takes in and adds to: dropout, and a sum.
_ADAPTED = 6
# Start of a collective inside a domain.
_COLLECTIVE_S = 8e-6


@dataclass(frozen=True)
class FusedPasses:
    """One layer's forward and backward pass over one micro batch, in seconds.

    Attributes
    ----------
    products, attention, traffic
        What the GPU computes (pass, run): matrix products, fused attention, element-wise work.
    tensor, context, experts
        What of tensor-, context- and expert-parallel communication is not hidden (pass, run).
    host
        Launching all of it (pass, run).
    """

    products: Array
    attention: Array
    traffic: Array
    tensor: Array
    context: Array
    experts: Array
    host: Array

    def times(self, count: Array) -> "FusedPasses":
        """Multiply all times."""
        return FusedPasses(*(count * getattr(self, one.name) for one in fields(self)))

    def __add__(self, other: "FusedPasses") -> "FusedPasses":
        return FusedPasses(
            *(getattr(self, one.name) + getattr(other, one.name) for one in fields(self))
        )

    @property
    def gpu(self) -> Array:
        """What the GPU is busy with (pass, run)."""
        busy: Array = self.products + self.attention + self.traffic
        return busy

    @property
    def time_s(self) -> Array:
        """Both passes (pass, run): the GPU and what it waits for, or the host."""
        longest: Array = np.maximum(self.gpu + self.tensor + self.context + self.experts, self.host)
        return longest


def layer_passes(run: Run, layer: list[Operation], parameters: FusedParameters) -> FusedPasses:
    """Price the passes of one layer, given as its operations."""
    multiplied, operands, results = _products(run, layer, parameters)
    attention = _attention(run, layer, parameters)
    moved = _element_bytes(run, layer)
    moved = moved + run.quantised * _CAST_BYTES * np.stack([operands, results])
    memory = run.memory_bytes_per_s * parameters.memory_efficiency
    element_s = by_software(run, parameters.traffic) * moved / memory
    return FusedPasses(
        products=multiplied,
        attention=attention,
        traffic=element_s,
        tensor=_tensor(run, layer, parameters, multiplied),
        context=_context(run, layer, parameters, attention),
        experts=_experts(run, layer, parameters, multiplied + attention + element_s),
        host=_host(run, parameters),
    )


def _products(
    run: Run, layer: list[Operation], parameters: FusedParameters
) -> tuple[Array, Array, Array]:
    """Seconds of all products (pass, run), and elements of their operands and of their results'
    gradients."""
    rates = Rates(run.peak_flops, run.memory_bytes_per_s, run.multiprocessors)
    gpu = multiplier(rates, product_costs(run, parameters))
    forward, backward, operands, results = (np.zeros_like(run.tokens) for _ in range(4))
    for one in products(layer):
        there = np.minimum(one.parameters, 1.0)
        if one.experts is None:
            t, m, batch = run.tp, run.tokens, np.ones_like(run.tokens)
        else:
            # Tensor-parallel ranks share the routed tokens; all wait for the rank that has most.
            there = there * run.mixture
            t, batch = run.etp, np.maximum(one.experts / run.ep, 1.0)
            m = run.tokens * one.chosen * run.etp / run.tp / batch * run.imbalance
        if not there.any():
            continue
        # Runs without such a layer have sizes of one here, and none of the time.
        m, n, k = (np.where(there > 0, size, 1.0) for size in (m, *one.divided(t)))

        def seconds(m: Array, n: Array, k: Array, batch: Array = batch) -> Array:
            return product_s(m, n, k, run.operand_bytes, gpu, batch)

        forward += there * seconds(m, n, k)
        backward += there * (seconds(m, k, n) + (run.trained >= 1) * seconds(n, k, m))
        operands += there * batch * m * k
        results += there * batch * m * n
    return np.stack([forward, backward]), operands, results


def _attention(run: Run, layer: list[Operation], parameters: FusedParameters) -> Array:
    """Seconds of fused attention (pass, run). A context-parallel rank has its part of the queries,
    in two pieces that make all ranks' shares of the causal triangle alike."""
    rates = Rates(run.half_flops, run.memory_bytes_per_s, run.multiprocessors)
    costs = attention_costs(run, parameters)
    forward = np.zeros_like(run.tokens)
    for one in attentions(layer):
        heads, kv_heads = one.heads / run.tp, np.maximum(one.kv_heads / run.tp, 1.0)
        whole = attention_s(run.micro_batch, run.seq, heads, kv_heads, one.mean_dim, rates, costs)
        forward = forward + whole * visible_share(one, run.seq) / run.cp
    forward = forward * np.where(run.sinks > 0, parameters.sinks, 1.0)
    backward = _ATTENTION_BACKWARD_FLOPS * forward / parameters.attention_backward
    return np.stack([forward, backward])


def _element_bytes(run: Run, layer: list[Operation]) -> Array:
    """Bytes that element-wise kernels move (pass, run); tensor-parallel ranks divide all of it."""
    forward, backward = np.zeros_like(run.tokens), np.zeros_like(run.tokens)
    for one in elements(layer):
        forward += one.forward_bytes * one.width
        backward += one.backward_bytes * one.width
    for core in attentions(layer):
        # Adapters of attention's products: dropout of inputs, and sums with outputs.
        width = run.hidden + core.query_width + core.kv_width + core.output_width
        forward = forward + (run.trained < 1) * _ADAPTED * width
        backward = backward + (run.trained < 1) * _ADAPTED * width
    moved: Array = np.stack([forward, backward]) * run.tokens / run.tp
    return moved


def _tensor(
    run: Run, layer: list[Operation], parameters: FusedParameters, products: Array
) -> Array:
    """Exposed tensor-parallel communication (pass, run).

    Sequence-parallel: an all-gather before and a reduce-scatter behind attention and MLP, each way,
    and one more all-gather of each input in the backward pass (Korthikanti et al., 2023, section
    4.2.2). Where it overlaps, a product and its collective go through in `tp` pieces, of which the
    first or last has nothing to hide behind, while communication keeps multiprocessors busy.
    """
    t = run.tp
    link = run.link_bytes_per_s * parameters.link_efficiency
    one = np.zeros_like(run.tokens)
    for message in messages(layer, "tensor"):
        wire = (t - 1) / t * _HALF_BYTES * run.tokens * message.width / link
        one = one + wire + _COLLECTIVE_S * np.minimum(t - 1, 1.0)
    every = np.stack([2 * one, 3 * one])
    pieces = np.maximum(every - products, every / t) + parameters.reserved * every
    hides = run.hidden_tp * of_stack(run, lambda stack: stack.hides_tensor)
    exposed: Array = np.where(hides > 0, np.minimum(pieces, every), every)
    return np.where(t > 1, exposed, 0.0)


def _context(
    run: Run, layer: list[Operation], parameters: FusedParameters, attention: Array
) -> Array:
    """Exposed exchange of keys and values (pass, run), which go round a ring while attention
    computes with those that are there; the backward pass sends their gradients too."""
    width = sum(one.width for one in messages(layer, "context"))
    moved = _HALF_BYTES * run.micro_batch * run.seq * width / run.tp
    rate = np.where(run.tp * run.cp <= run.domain_gpus, *_rates(run, parameters))
    wire = (run.cp - 1) / run.cp * moved / rate
    every = np.stack([wire, 2 * wire])
    steps = _COLLECTIVE_S * (run.cp - 1)
    exposed = np.maximum(every - attention, every / run.cp) + parameters.reserved * every + steps
    return np.where(run.cp > 1, exposed, 0.0)


def _experts(
    run: Run, layer: list[Operation], parameters: FusedParameters, computing: Array
) -> Array:
    """Exposed all-to-alls (pass, run): tokens to their experts and back.

    A token that several experts of one domain want crosses the fabric once. The rank that gets most
    ends last.
    """
    domains = np.maximum(run.ep / np.maximum(run.domain_gpus / run.tp, 1.0), 1.0)
    links, fabric = _rates(run, parameters)
    one = run.mixture * by_software(run, parameters.exchange)
    for message in messages(layer, "expert"):
        size, k = _HALF_BYTES * run.tokens / run.tp * message.width, message.chosen
        copies = (domains - 1) * (1 - (1 - 1 / domains) ** k)
        inside = k * np.minimum((run.ep - 1) / run.ep, 1.0) * size / links
        longest = run.imbalance * np.maximum(inside, copies * size / fabric)
        # Ranks that divide an expert gather its tokens, and sum up what it returns.
        gathered = (run.etp - 1) * k * size / links
        one = one + run.mixture * (longest / parameters.exchange_efficiency + gathered)
    one = np.where(run.ep * run.etp > 1, one, 0.0)
    every = np.stack([2 * one, 2 * one])
    # Overlapped, one micro batch's exchange goes on behind another's computing.
    hidden = np.maximum(every - computing, 0.0) + parameters.reserved * every
    said = run.hidden_ep * of_stack(run, lambda stack: stack.hides_experts)
    return np.where(said > 0, np.minimum(hidden, every), every)


def _rates(run: Run, parameters: FusedParameters) -> tuple[Array, Array]:
    """Bytes per second of a GPU's links and of its NIC."""
    return (
        run.link_bytes_per_s * parameters.link_efficiency,
        run.nic_bytes_per_s * parameters.fabric_efficiency,
    )


def _host(run: Run, parameters: FusedParameters) -> Array:
    """Seconds of launching kernels (pass, run); a backward pass has two products for each one."""
    quantised = run.quantised
    local = run.experts / run.ep

    def launches(own: str, passes: float) -> Array:
        expert = of_stack(run, lambda stack: stack.launches.expert)
        count: Array = (
            of_stack(run, lambda stack: getattr(stack.launches, own))
            + quantised * of_stack(run, lambda stack: stack.launches.quantised)
            + run.mixture * passes * of_stack(run, lambda stack: stack.launches.experts)
            + passes * (1 + quantised) * expert * local
        )
        return count

    counts = np.stack([launches("forward", 1.0), launches("backward", 1.5)])
    seconds: Array = parameters.launch_s * counts
    return seconds
