"""One training step in a scheme of partitioning, predicted at full scale.

Computing is the performance model's of one GPU, collectives are rings on the cluster's links, and
the closed forms say which there are. A layer's weights are gathered while the layer before it
computes, and its gradients summed while the next one does, as far as a setting says; a rank's
collectives run one after another, and what no layer covers is waited for.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, training_flops
from repro.catalog.parallel.partitions import (
    Collective,
    Partition,
    UnitTraffic,
    gpt_units,
    held_bytes,
    shard_sizes,
    unit_traffic,
)
from repro.catalog.studies.partitions import Setting
from repro.predict.network.collectives import topology_s
from repro.predict.network.machine import Machine, strided
from repro.predict.operators.kernels import Kernels
from repro.predict.parameters import Parameters
from repro.predict.step.iteration import optimizer_s, predict_phases
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.workload import Array, Plan, Workload, workload

# Memory that a quantised element moves: 16 bits read and 8 or 4 written, or the other way.
_QUANTISING_BYTES = {"all_gather": 3.0, "all_to_all": 2.5}


@dataclass(frozen=True)
class Step:
    """An iteration of every rank, in seconds.

    `computing` is of forward and backward passes and what the host adds, `stragglers` what the
    slowest GPU takes longer, `gather` and `reduce` all time on the wire, hidden or not, and
    `exposed` what of it is waited for, all in all; `optimizer` is Adam's step.
    """

    computing: Array
    stragglers: Array
    gather: Array
    reduce: Array
    exposed: Array
    optimizer: Array

    @property
    def time_s(self) -> Array:
        """All of it."""
        return np.asarray(self.computing + self.stragglers + self.exposed + self.optimizer)


@dataclass(frozen=True)
class Computing:
    """What one GPU computes of a micro batch, whatever is spread over others; seconds and bytes."""

    forward: Array
    backward: Array
    host: Array
    activations: float
    flops: float
    layers: int


def computing(
    shape: Shape, setting: Setting, machine: Machine, parameters: Parameters
) -> Computing:
    """A micro batch of a GPT on one GPU."""
    size = setting.micro_batch_size
    flat = _alone(shape, setting)
    phases = predict_phases(flat, machine, parameters)
    return Computing(
        forward=phases.forward_compute,
        backward=phases.backward_compute + phases.recompute,
        host=phases.other,
        activations=float(memory(flat).activations[0]),
        flops=float(training_flops("gpt", shape, size)),
        layers=shape.layers,
    )


def _alone(shape: Shape, setting: Setting) -> Workload:
    plan = Plan(setting.micro_batch_size, setting.micro_batch_size, recompute=setting.recompute)
    return workload("gpt", shape, plan).flat()[0]


def predict_step(
    shape: Shape,
    partition: Partition,
    setting: Setting,
    own: Computing,
    machine: Machine,
    parameters: Parameters,
) -> Step:
    """An iteration of a model whose states are spread so.

    Parameters
    ----------
    own
        Of the same shape and setting (`computing`).
    parameters
        Values, or columns of draws: times have one for each then.
    """
    layer, around = gpt_units(shape)
    moved, first = (
        unit_traffic(partition, unit, FULL_ELEMENT_BYTES, FULL_ELEMENT_BYTES)
        for unit in (layer, around)
    )
    times, first_times = (_times(one, machine, parameters) for one in (moved, first))
    count, m = own.layers, setting.micro_batches
    wire = [count * getattr(times, name) + getattr(first_times, name) for name in _PARTS]
    forward, again, reduce, synchronise, update = wire
    busy = m * (own.forward + own.backward + own.host)
    stepped = sum(unit.count * shard_sizes(partition, unit).optimizer for unit in (layer, around))
    kernels = Kernels(machine.gpu, parameters)
    one = np.ones(1)
    return Step(
        computing=busy,
        stragglers=parameters.straggler_fraction * np.log(partition.ranks) * busy,
        gather=m * (forward + again) + update,
        reduce=m * reduce + synchronise,
        exposed=_exposed_s(times, first_times, own, setting),
        optimizer=optimizer_s(stepped * one, count * one, 0 * one, one, kernels),
    )


@dataclass(frozen=True)
class _Times:
    """Seconds of `UnitTraffic`, each part."""

    forward: Array
    backward: Array
    reduce: Array
    synchronise: Array
    update: Array


_PARTS = tuple(field.name for field in fields(_Times))


def _exposed_s(layer: _Times, around: _Times, own: Computing, setting: Setting) -> Array:
    """Collectives that are waited for in an iteration."""
    count, m = own.layers, setting.micro_batches

    def passing(of_layer: Array, of_around: Array, compute: Array) -> Array:
        """A pass: what is around the layers and one layer have nothing to hide behind."""
        hidden = compute / count
        rest = (count - 1) * np.maximum(of_layer - hidden, 0.0)
        return np.asarray(of_around + of_layer + rest)

    back = layer.backward + layer.reduce
    once = count * (layer.synchronise + layer.update) + around.synchronise + around.update
    if setting.overlap == "none":
        every = count * (layer.forward + back) + around.forward + around.reduce
        return np.asarray(m * every + once)
    usual = passing(layer.forward, around.forward, own.forward)
    usual = usual + passing(back, around.reduce, own.backward)
    if setting.overlap == "passes":
        return np.asarray(m * usual + once)
    first = passing(layer.forward + layer.update, around.forward + around.update, own.forward)
    last = passing(back + layer.synchronise, around.reduce + around.synchronise, own.backward)
    return np.asarray((m - 1) * usual + first + last)


def _times(traffic: UnitTraffic, machine: Machine, parameters: Parameters) -> _Times:
    def total(calls: tuple[Collective, ...]) -> Array:
        seconds = [_call_s(call, machine, parameters) for call in calls]
        return np.asarray(sum(seconds, start=np.zeros(1)))

    return _Times(*(total(getattr(traffic, name)) for name in _PARTS))


def _call_s(call: Collective, machine: Machine, parameters: Parameters) -> Array:
    """Predict seconds of one collective and its quantising while all groups like it are busy."""
    ranks, stride = np.array([float(call.ranks)]), np.array([float(call.stride)])
    group = strided(ranks, stride, machine)
    wire = topology_s(call.operation, float(call.size_bytes), group, parameters)
    if call.quantised:
        moved = np.array([_QUANTISING_BYTES[call.operation] * call.quantised])
        wire = wire + Kernels(machine.gpu, parameters).traffic_s(moved)
    return wire


def memory_bytes(shape: Shape, partition: Partition, own: Computing) -> dict[str, float]:
    """What a GPU holds at most, by part: states, two gathered layers with the weights around them
    and a layer's gradients, activations, and the framework's own."""
    layer, around = gpt_units(shape)
    states = held_bytes(partition, (layer, around), FULL_ELEMENT_BYTES)
    gathered = 0.0
    if partition.weights > 1:
        gathered = FULL_ELEMENT_BYTES * (
            2.0 * shard_sizes(partition, layer).gathered + around.elements
        )
    gradients = FULL_ELEMENT_BYTES * layer.elements
    return {
        **{name: float(size) for name, size in states.items()},
        "gathered": gathered + gradients,
        "activations": own.activations,
        "framework": FRAMEWORK_BYTES,
    }


def fits(shape: Shape, partition: Partition, own: Computing, machine: Machine) -> bool:
    """Whether a GPU's memory is enough."""
    held = sum(memory_bytes(shape, partition, own).values())
    return held <= machine.gpu.memory_bytes


def faster_links(machine: Machine, times: float) -> Machine:
    """A machine whose links between nodes have so many times the rate."""
    top = machine.levels[-1]
    changed = replace(top, bytes_per_s=top.bytes_per_s * times)
    return replace(machine, levels=(*machine.levels[:-1], changed))
