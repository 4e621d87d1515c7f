"""GPU memory of a fused step, by part."""

from dataclasses import dataclass, fields

import numpy as np

from repro.predict.fused.iteration import held_parameters, layer_parameters, stage_layers
from repro.predict.fused.run import Run
from repro.predict.workload import RECOMPUTE, Array

_HALF_BYTES, _FP32_BYTES = 2, 4
# Adam in mixed precision: fp32 weights and two moments.
STATES_BYTES = 12
# What the framework, its kernels and its communication buffers take, and what fragmentation may
# add to all parts: none to a tenth.
FRAMEWORK_BYTES, FRAGMENTATION = 3e9, 0.1


@dataclass(frozen=True)
class Memory:
    """Bytes on the GPU that has most: one of the first stage, whose activations wait longest."""

    weights: Array
    gradients: Array
    optimizer_states: Array
    activations: Array
    logits: Array

    @property
    def total(self) -> Array:
        """All parts and the framework, without fragmentation."""
        parts = sum((getattr(self, one.name) for one in fields(self)), start=np.zeros(()))
        return parts + FRAMEWORK_BYTES


def memory(run: Run) -> Memory:
    """Memory of each run.

    Weights in half precision and gradients in fp32 are whole on each replica, unless replicas share
    all of them; the optimizer's states they share anyhow.
    """
    tables = np.where(run.pp > 1, 1.0, 2.0 - run.tied)
    held = held_parameters(run, tables)
    split, experts = layer_parameters(run)
    # One layer's parameters and gradients are whole while it computes.
    at_once = split / run.tp + experts / run.ep
    whole = np.where(run.sharded > 0, held.own + 2 * at_once, held.all)
    return Memory(
        weights=_HALF_BYTES * whole,
        gradients=_FP32_BYTES * whole,
        optimizer_states=STATES_BYTES * held.own,
        activations=_activations(run) * stage_layers(run) * _in_flight(run),
        logits=np.where(run.pp > 1, 0.0, _FP32_BYTES * run.tokens * run.vocab / run.tp),
    )


def _activations(run: Run) -> Array:
    """What one layer keeps of a micro batch: inputs of norms, of products and of attention, with
    sequence parallelism all of them split. Fused attention keeps no scores."""
    tokens = run.tokens / run.tp
    norms = 4 * run.hidden
    attention = (2 * run.heads + 2 * run.kv_heads) * run.head_dim
    inner = run.ffn + run.shared_expert_ffn + run.experts_per_token * run.expert_ffn
    routed = 2 * run.experts_per_token * run.hidden
    kept = norms + attention + (2 + run.gated) * inner + routed
    # Where attention is fused, recomputing its core keeps nothing less.
    elements = {"none": kept, "selective": kept, "full": run.hidden}
    recompute = run.recompute.astype(int)
    size: Array = _HALF_BYTES * tokens * np.choose(recompute, [elements[n] for n in RECOMPUTE])
    return size


def _in_flight(run: Run) -> Array:
    """Micro batches whose activations the first stage holds: as many as there are stages, and with
    interleaving (p - 1)/(p v) of them more (Korthikanti et al., 2023, section 4.2.3)."""
    p, v = run.pp, run.vpp
    return np.minimum(run.micro_batches, p) * np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
