"""One iteration of a fused step: layers in stages, replicas' gradients and parameters, the step."""

from dataclasses import dataclass, fields
from functools import reduce

import numpy as np

from repro.catalog.models.layers import Linear, layer_kinds
from repro.predict.fused.layer import FusedPasses, layer_passes
from repro.predict.fused.parameters import FusedParameters, of_stack, product_costs
from repro.predict.fused.run import Run
from repro.predict.operators.kernels import Rates, multiplier, product_s
from repro.predict.workload import RECOMPUTE, Array, in_blocks

_HALF_BYTES = 2
# Bytes per logit that the loss moves, forward and backward, in fp32; per element of the embedding.
_LOSS, _EMBEDDING = 30, 24
# Bytes per parameter that a shared Adam's step reads and writes of its part.
_ADAM = 40
# What each rank does with all gradients: their norm, and clearing them.
_ALL_GRADIENTS = 6
_MESSAGE_S = 1e-5
# Parameters of a bucket that replicas sync at once, at least, and per rank (Megatron-Core's
# DistributedDataParallelConfig).
_BUCKET, _BUCKET_PER_RANK = 40e6, 1e6


@dataclass(frozen=True)
class FusedPhases:
    """An iteration in seconds; phases add up to `iteration_time_s`.

    `products`, `attention` and `elements` are computing, `logits` both ends of the model,
    `recompute` what the backward pass computes again. Communication is what is not hidden: of
    `tensor_parallel`, `context_parallel` and `expert_parallel` groups, of `replicas`, and
    `messages` between stages. `host` is what the GPU waits for launches, `bubble` for other stages.
    """

    products: Array
    attention: Array
    elements: Array
    logits: Array
    recompute: Array
    tensor_parallel: Array
    context_parallel: Array
    expert_parallel: Array
    replicas: Array
    messages: Array
    host: Array
    bubble: Array
    optimizer: Array
    stragglers: Array

    @property
    def iteration_time_s(self) -> Array:
        """The sum of all phases."""
        return reduce(np.add, (getattr(self, one.name) for one in fields(self)))


def predict_phases(run: Run, parameters: FusedParameters) -> FusedPhases:
    """Every phase of an iteration, as arrays of the runs' length."""
    one = _mean_passes(run, parameters)
    layers = stage_layers(run)
    m = run.micro_batches
    forward, backward = one.time_s
    again = _recomputed(run, one)
    wire = _sharded_wire_s(run, parameters)
    # Sharded parameters of the next layer come while this one computes.
    waits = np.maximum(wire[0] - forward, 0.0) + np.maximum(wire[1] - backward - again, 0.0)
    waits = waits + parameters.reserved * wire.sum(axis=0)
    logits, embedding = _ends_s(run, parameters)
    # Further tokens have logits of their own.
    logits = logits * (1 + run.mtp_layers)
    alone = run.pp == 1
    messages = _messages_s(run, parameters)
    layer = forward + backward + again + waits
    # The slowest stage decides, which is the last one with the logits. Stages of uneven models
    # leave room for the ends.
    room = np.where(_uneven(run), layer, 0.0)
    ends = np.where(alone, logits + embedding, np.maximum(logits - room, 0.0))
    stage = layers * layer + messages
    # With gradients of weights put off, T_F + T_B - T_W of T_F + T_B + T_W are left (Qi et al.,
    # Zero Bubble Pipeline Parallelism, 2024, ZB-H1); T_W is half of the backward pass's products.
    put_off = run.zero_bubble * layers * one.products[1]
    bubble = np.where(alone, 0.0, (run.pp - 1) / run.vpp * (stage - put_off))
    held = held_parameters(run)
    replicas = _replicas_s(run, parameters, held, layers * forward, layers * backward)
    gpu = one.gpu + one.tensor + one.context + one.experts
    passes = m * layers
    phases = {
        "products": passes * one.products.sum(axis=0),
        "attention": passes * one.attention.sum(axis=0),
        "elements": passes * one.traffic.sum(axis=0),
        "logits": m * ends,
        "recompute": passes * again,
        "tensor_parallel": passes * one.tensor.sum(axis=0),
        "context_parallel": passes * one.context.sum(axis=0),
        "expert_parallel": passes * one.experts.sum(axis=0),
        "replicas": passes * waits + replicas,
        "messages": m * messages,
        "host": passes * (one.time_s - gpu).sum(axis=0),
        "bubble": bubble,
        "optimizer": _optimizer_s(run, parameters, held),
    }
    busy = reduce(np.add, phases.values())
    return FusedPhases(
        **phases, stragglers=parameters.straggler_fraction * np.log2(run.gpus) * busy
    )


def iteration_times_s(run: Run, parameters: FusedParameters) -> Array:
    """Seconds of an iteration of each run."""
    return predict_phases(run, parameters).iteration_time_s


def in_blocks_s(run: Run, parameters: FusedParameters) -> Array:
    """`iteration_times_s` of many runs, in single precision and in blocks that fit a cache."""
    found = in_blocks(run.single(), lambda rows: {"time": iteration_times_s(rows, parameters)})
    return found["time"].astype(np.float64)


def _mean_passes(run: Run, parameters: FusedParameters) -> FusedPasses:
    """Price the mean of a model's layers."""
    kinds = layer_kinds(run)
    priced = [
        layer_passes(run, layer, parameters).times(count / run.layers) for count, layer in kinds
    ]
    return reduce(FusedPasses.__add__, priced)


def layer_parameters(run: Run) -> tuple[Array, Array]:
    """Count parameters of the mean layer on a GPU as if replicas shared none: common, experts'."""
    common, routed = np.zeros(()), np.zeros(())
    for count, layer in layer_kinds(run):
        share = count / run.layers
        for one in layer:
            if not isinstance(one, Linear):
                continue
            if one.experts is None:
                ranks = 1.0 if one.splits is None else run.tp
                common = common + share * one.parameters / ranks
            else:
                routed = routed + share * one.parameters * one.experts / (run.ep * run.etp)
    return common, routed


@dataclass(frozen=True)
class HeldParameters:
    """Parameters of a GPU of the stage that has most layers, as if replicas shared none of them.

    `common` are those of layers and a table, `experts` those of its experts; `own` is the GPU's
    part where all replicas share them.
    """

    common: Array
    experts: Array
    own: Array

    @property
    def all(self) -> Array:
        """All of them."""
        count: Array = self.common + self.experts
        return count


def held_parameters(run: Run, tables: Array | float = 1.0) -> HeldParameters:
    """What a GPU holds, with so many tables of the vocabulary."""
    common, routed = layer_parameters(run)
    layers, ranks = stage_layers(run), run.dp * run.cp
    common = common * layers + tables * run.vocab * run.hidden / run.tp
    routed = routed * layers
    return HeldParameters(common, routed, common / ranks + routed / run.expert_replicas)


def _uneven(run: Run) -> Array:
    """Where stages do not hold whole layers, so that the ends count as a layer each."""
    chunk = _all_layers(run) / (run.pp * run.vpp)
    uneven: Array = np.floor(chunk) < chunk
    return uneven


def _all_layers(run: Run) -> Array:
    """Layers with those that predict further tokens."""
    layers: Array = run.layers + run.mtp_layers
    return layers


def stage_layers(run: Run) -> Array:
    """Layers of the stage that has most."""
    chunks, layers = run.pp * run.vpp, _all_layers(run)
    with_ends = np.ceil((layers + 2) / chunks) * run.vpp
    most: Array = np.where(_uneven(run), with_ends, layers / run.pp)
    return np.where(run.pp > 1, most, layers)


def _recomputed(run: Run, one: FusedPasses) -> Array:
    """Seconds of what a layer's backward pass computes again."""
    nothing = np.zeros_like(one.time_s[0])
    choices = {"none": nothing, "selective": one.attention[0], "full": one.time_s[0]}
    return np.choose(run.recompute.astype(int), [choices[name] for name in RECOMPUTE])


def _ends_s(run: Run, parameters: FusedParameters) -> tuple[Array, Array]:
    """A micro batch's logits and loss, and its embedding; in half precision."""
    rates = Rates(run.half_flops, run.memory_bytes_per_s, run.multiprocessors)
    gpu = multiplier(rates, product_costs(run, parameters, half=True))
    tokens, h, table = run.tokens, run.hidden, run.vocab / run.tp
    products = (
        product_s(tokens, table, h, _HALF_BYTES, gpu)
        + product_s(tokens, h, table, _HALF_BYTES, gpu)
        + product_s(table, h, tokens, _HALF_BYTES, gpu)
    )
    memory = run.memory_bytes_per_s * parameters.memory_efficiency
    return products + _LOSS * tokens * table / memory, _EMBEDDING * tokens * h / memory


def compute_passes_s(run: Run, parameters: FusedParameters) -> Array:
    """What a stage that holds a whole model computes in an iteration (pass, run), or its host
    launches; nothing recomputed. A third of the logits' products are of the forward pass."""
    one = _mean_passes(run, parameters)
    logits, embedding = _ends_s(run, parameters)
    ends = np.stack([(logits + embedding) / 3, 2 * (logits + embedding) / 3])
    seconds: Array = run.micro_batches * (run.layers * np.maximum(one.gpu, one.host) + ends)
    return seconds


def _messages_s(run: Run, parameters: FusedParameters) -> Array:
    """A stage's messages of one micro batch, both ways and for all its chunks, that are exposed."""
    wire = _HALF_BYTES * run.tokens * run.hidden / run.tp
    wire = wire / (run.nic_bytes_per_s * parameters.fabric_efficiency)
    # Behind the next chunk's computing only multiprocessors are lost.
    each = np.where(run.hidden_pp > 0, parameters.reserved * wire, wire) + _MESSAGE_S
    return np.where(run.pp > 1, 2 * run.vpp * each, 0.0)


def _replica_rate(
    run: Run, parameters: FusedParameters, ranks: Array, apart: Array | float = 1.0
) -> Array:
    """Return the bus bandwidth of a ring of so many ranks, in bytes/s.

    They are `apart` times tensor parallelism GPUs apart. Between domains each of a group's ranks in
    one has a ring of its own through its own NIC (NCCL's channels on rail-optimised fabrics), so
    their rates add up, to what links carry.
    """
    links = run.link_bytes_per_s * parameters.link_efficiency
    near = run.domain_gpus / (run.tp * np.maximum(apart, 1.0))
    members = np.clip(near, 1.0, np.maximum(ranks, 1.0))
    nics = members * run.nic_bytes_per_s * parameters.fabric_efficiency
    return np.where(ranks <= near, links, np.minimum(links, nics))


def _sharded_wire_s(run: Run, parameters: FusedParameters) -> Array:
    """Seconds that one layer's sharded parameters and gradients are on the wire (pass, run):
    gathered for each pass, and reduced in the backward pass."""
    common, experts = layer_parameters(run)
    ranks = run.dp * run.cp
    count = common * (ranks - 1) / ranks + experts * (1 - 1 / run.expert_replicas)
    gather = run.parameter_bytes * count / _replica_rate(run, parameters, ranks)
    often = of_stack(run, lambda stack: stack.gradient_syncs_per_micro_batch)
    reduce = run.trained * gather * np.where(often > 0, 1.0, 1.0 / run.micro_batches)
    wire: Array = run.sharded * np.stack([gather, gather + reduce])
    return wire


def _replicas_s(
    run: Run,
    parameters: FusedParameters,
    held: HeldParameters,
    forward_s: Array,
    backward_s: Array,
) -> Array:
    """Exposed gradients and parameters of replicas that share the optimizer.

    Buckets go while the last micro batch's backward pass and the first one's forward pass compute
    the layers behind them; the last bucket has nothing to hide behind.
    """
    ranks = run.dp * run.cp
    wire = held.common * (ranks - 1) / ranks / _replica_rate(run, parameters, ranks)
    # Ranks that have the same experts are as far apart as those that have different ones.
    apart = run.ep * run.etp / run.tp
    expert_rate = _replica_rate(run, parameters, run.expert_replicas, apart)
    wire = wire + held.experts * (1 - 1 / run.expert_replicas) / expert_rate
    buckets = np.maximum(
        run.trained * held.all / np.maximum(_BUCKET, _BUCKET_PER_RANK * ranks), 1.0
    )
    outside = np.where(ranks * run.tp > run.domain_gpus, ranks - 1, 0.0)
    latency = parameters.ring_step_s * outside * buckets
    layers = stage_layers(run)
    gradients, gathered = run.gradient_bytes * wire, run.parameter_bytes * wire
    gradients, gathered = (run.trained * sent + latency for sent in (gradients, gathered))
    last = 1 / np.maximum(layers, 2.0)
    cover = (1 - last) / run.vpp

    def exposed(sent: Array, behind: Array, hides: Array) -> Array:
        hidden = np.maximum(sent - behind * cover, sent * last) + parameters.reserved * sent
        return np.where(hides > 0, np.minimum(hidden, sent), sent)

    both = exposed(gradients, backward_s, run.hidden_gradients) + exposed(
        gathered, forward_s, run.hidden_dp
    )
    return np.where((ranks > 1) & (run.sharded == 0), both, 0.0)


def sent_through_nics_bytes(run: Run) -> Array:
    """Count the bytes that a GPU sends through its NIC in an iteration.

    Rings of replicas, exchanges of experts and messages between stages, as far as they leave the
    GPUs that links join; each GPU of a group sends its part.
    """
    held, ranks, layers = held_parameters(run), run.dp * run.cp, stage_layers(run)
    near = np.maximum(run.domain_gpus / run.tp, 1.0)
    shared = held.common * (ranks - 1) / ranks + held.experts * (1 - 1 / run.expert_replicas)
    often = np.where(run.sharded > 0, 3 * run.micro_batches / 2, 1.0)
    replicas = run.trained * (run.gradient_bytes + run.parameter_bytes) * shared * often
    replicas = np.where(ranks > near, replicas / np.clip(near, 1.0, ranks), 0.0)
    domains = np.maximum(run.ep / near, 1.0)
    copies = (domains - 1) * (1 - (1 - 1 / domains) ** run.experts_per_token)
    hidden = _HALF_BYTES * run.tokens * run.hidden / run.tp
    # To experts and back, in both passes.
    exchanged = 4 * run.mixture * layers * run.micro_batches * copies * hidden
    messages = np.where(run.pp > 1, 2 * run.vpp * run.micro_batches * hidden, 0.0)
    messages = np.where(run.gpus > run.domain_gpus, messages, 0.0)
    total: Array = replicas + exchanged + messages
    return total


def _optimizer_s(run: Run, parameters: FusedParameters, held: HeldParameters) -> Array:
    """Adam's step on a GPU's part of the parameters."""
    every = np.where(run.sharded > 0, 0.0, held.all)
    return adam_s(run, parameters, run.trained * held.own, run.trained * every)


def adam_s(run: Run, parameters: FusedParameters, own: Array, every: Array | None = None) -> Array:
    """Adam's step on a rank's `own` parameters, with the norm of all gradients that it holds."""
    moved = _ADAM * own + _ALL_GRADIENTS * (own if every is None else every)
    seconds: Array = moved / (run.memory_bytes_per_s * parameters.memory_efficiency)
    return seconds
