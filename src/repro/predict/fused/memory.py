"""GPU memory of a fused step, by part."""

from dataclasses import replace

import numpy as np

from repro.catalog.models.layers import layer_kinds
from repro.predict.fused.iteration import held_parameters, layer_parameters, stage_layers
from repro.predict.fused.parameters import of_stack
from repro.predict.fused.run import Run
from repro.predict.memory import (
    MIXED,
    Kept,
    Memory,
    Widths,
    activation_bytes,
    in_flight,
    model_states,
)
from repro.predict.workload import Array

_LOGIT_BYTES = 4
# What the framework, its kernels and its communication buffers take, and what fragmentation may
# add to all parts: none to a tenth.
FRAMEWORK_BYTES, FRAGMENTATION = 3e9, 0.1


def memory(
    run: Run,
    stage: Array | int = 0,
    *,
    zero: Array | int | None = None,
    widths: Widths | None = None,
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
        Of a parameter and of an activation. Default: mixed precision with the run's gradients, and
        what the software's shards are in.
    """
    level = np.where(run.sharded > 0, 3, 1) if zero is None else np.asarray(zero)
    widths = _widths(run, level) if widths is None else widths
    first, last = np.equal(stage, 0), np.equal(stage, run.pp - 1)
    # Where input and output share a table, an only stage has it once. Layers that predict further
    # tokens have another embedding table, except on an only stage or where it is the output's.
    further = np.minimum(run.mtp_layers, 1.0) * (1 - run.tied)
    tables = 1.0 * first + last - np.where(first & last, run.tied, 0.0)
    held = held_parameters(run, tables + np.where(last & ~first, further, 0.0))
    # One layer computes, and the next one's parameters come in.
    at_once = 2 * sum(layer_parameters(run))
    kept, recomputed = _layer_activations(run, widths.element)
    waiting = in_flight(stage, run.pp, run.vpp, run.micro_batches)
    # Inputs of the final norm and of the logits.
    head = np.where(last, 2 * widths.element * run.tokens * run.hidden / run.tp, 0.0)
    return Memory(
        **model_states(held.all, held.own, level, widths, at_once, run.trained),
        activations=kept * stage_layers(run) * waiting + recomputed + head,
        logits=np.where(
            last, (1 + run.mtp_layers) * _LOGIT_BYTES * run.tokens * run.vocab / run.tp, 0.0
        ),
    )


def _widths(run: Run, zero: Array) -> Widths:
    """Return the bytes of each run's parameters.

    Some software's sharded weights are the optimizer's own, in fp32, and cast when gathered.
    Weights in low precision are kept as they are and transposed; without gradients (LoRA) once.
    """
    gradient: Array = run.gradient_bytes
    half = run.trained * MIXED.weight
    half = half + (1 - run.trained) * np.clip(run.operand_bytes, 1.0, MIXED.weight)
    own = (of_stack(run, lambda stack: stack.fp32_shards) > 0) & (zero == 3)
    return Widths(
        weight=np.where(own, 4.0, half),
        gradient=np.where(own, 4.0, gradient),
        master=np.where(own, 0.0, MIXED.master),
        moments=MIXED.moments,
        element=MIXED.element,
        gathered=(half, np.where(own, MIXED.weight, gradient)),
    )


def fullest_bytes(run: Run) -> Array:
    """Bytes on the GPU that has most, one of the first stage or of the last, with the framework's
    own and half of what fragmentation may add."""
    largest = np.maximum(memory(run).total, memory(run, run.pp - 1).total)
    whole: Array = (largest + FRAMEWORK_BYTES) * (1 + FRAGMENTATION / 2)
    return whole


def _layer_activations(run: Run, element: float) -> tuple[Array, Array]:
    """Count the activations of a micro batch: kept by the mean layer, and of a recomputed layer.

    Sequence parallelism splits all of them. Products keep their inputs as they computed with them,
    in low precision with a copy of attention's output. The busiest experts' tokens decide.
    """
    low = run.precision > 0
    kept = Kept(
        element,
        operand=np.where(low, run.operand_bytes, element),
        copy=np.where(low, run.operand_bytes, 0.0),
    )
    kept_bytes, recomputed = np.zeros(()), np.zeros(())
    busiest = replace(run, experts_per_token=run.experts_per_token * run.imbalance)
    for count, layer in layer_kinds(busiest):
        one, whole = activation_bytes(
            layer,
            kept,
            run.recompute,
            {"own": run.tokens},
            run.micro_batch,
            run.tp,
            run.tp,
            run.etp,
            of_stack(run, lambda stack: stack.keeps_projections),
        )
        kept_bytes = kept_bytes + count / run.layers * one
        recomputed = np.maximum(recomputed, whole)
    return kept_bytes, recomputed
