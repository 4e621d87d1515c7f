"""GPU memory of a fused step, by part."""

import numpy as np

from repro.predict.fused.iteration import held_parameters, layer_parameters, stage_layers
from repro.predict.fused.run import Run
from repro.predict.memory import MIXED, Memory, Widths, in_flight, model_states
from repro.predict.workload import RECOMPUTE, Array

_LOGIT_BYTES = 4
# What the framework, its kernels and its communication buffers take, and what fragmentation may
# add to all parts: none to a tenth.
FRAMEWORK_BYTES, FRAGMENTATION = 3e9, 0.1


def memory(
    run: Run,
    stage: Array | int = 0,
    *,
    zero: Array | int | None = None,
    widths: Widths = MIXED,
) -> Memory:
    """Memory of each run's GPUs of a pipeline stage, in bytes.

    Parameters
    ----------
    stage
        From 0, whose activations wait longest; the last one has the logits.
    zero
        What replicas share (`repro.predict.memory.model_states`); without it what the run says:
        all, or the optimizer's states.
    widths
        Of a parameter and of an activation.
    """
    first, last = np.equal(stage, 0), np.equal(stage, run.pp - 1)
    # Where input and output share a table, an only stage has it once.
    tables = 1.0 * first + last - np.where(first & last, run.tied, 0.0)
    held = held_parameters(run, tables)
    split, experts = layer_parameters(run)
    # One layer computes, and the next one's parameters come in.
    at_once = 2 * (split / run.tp + experts / run.ep)
    level = np.where(run.sharded > 0, 3, 1) if zero is None else np.asarray(zero)
    element = widths.element
    waiting = in_flight(stage, run.pp, run.vpp, run.micro_batches)
    return Memory(
        **model_states(held.all, held.own, level, widths, at_once),
        activations=_kept(run, element) * stage_layers(run) * waiting + _computing(run, element),
        logits=np.where(last, _LOGIT_BYTES * run.tokens * run.vocab / run.tp, 0.0),
    )


def fullest_bytes(run: Run) -> Array:
    """Bytes on the GPU that has most, one of the first stage or of the last, with the framework's
    own and half of what fragmentation may add."""
    largest = np.maximum(memory(run).total, memory(run, run.pp - 1).total)
    whole: Array = (largest + FRAMEWORK_BYTES) * (1 + FRAGMENTATION / 2)
    return whole


def _layer(run: Run, element: float) -> Array:
    """Bytes that one layer keeps of a micro batch where nothing is recomputed: inputs of norms, of
    products and of attention, with sequence parallelism all of them split. Fused attention keeps no
    scores. Products keep their inputs as they computed with them: norms' outputs and what the MLP
    multiplies last, and in low precision a copy of what attention returned."""
    inner = run.ffn + run.shared_expert_ffn + run.experts_per_token * run.expert_ffn
    routed = 2 * run.experts_per_token * run.hidden
    attention = (2 * run.heads + 2 * run.kv_heads) * run.head_dim
    whole = 2 * run.hidden + attention + (1 + run.gated_mlp) * inner + routed
    copied = np.where(run.precision > 0, run.heads * run.head_dim, 0.0)
    operand = np.where(run.precision > 0, run.operand_bytes, element)
    operands = 2 * run.hidden + inner + copied
    size: Array = run.tokens / run.tp * (element * whole + operand * operands)
    return size


def _kept(run: Run, element: float) -> Array:
    """Bytes that one layer keeps; of a recomputed one its input. Where attention is fused,
    recomputing its core keeps nothing less."""
    whole, inputs = _layer(run, element), element * run.tokens / run.tp * run.hidden
    kept = {"none": whole, "selective": whole, "full": inputs}
    size: Array = np.choose(run.recompute.astype(int), [kept[name] for name in RECOMPUTE])
    return size


def _computing(run: Run, element: float) -> Array:
    """A recomputed layer, which is in memory as a whole while its backward pass runs."""
    return np.where(run.recompute == RECOMPUTE.index("full"), _layer(run, element), 0.0)
