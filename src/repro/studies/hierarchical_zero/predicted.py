"""Study of hierarchical partitioning at full scale: schemes by GPUs, sweeps, and a map.

One GPU computes as the performance model predicts, collectives are rings on the cluster's links,
and closed forms say which there are. As far as a setting allows, a layer's weights are gathered
while the layer before it computes, and its gradients are summed while the next one computes.
Collectives of a rank run one after another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, training_flops
from repro.catalog.parallel.partitions import (
    Collective,
    Partition,
    Scheme,
    Unit,
    gpt_units,
    held_bytes,
    iteration_calls,
    shard_sizes,
    unit_traffic,
)
from repro.catalog.studies.partitions import Setting, read_partition_study
from repro.catalog.systems.clusters import Cluster, cluster
from repro.collectives.levels import sent_by_level
from repro.errors import ReproError
from repro.predict.calibration.interval import LEVEL, draw_parameters
from repro.predict.network.collectives import topology_s
from repro.predict.network.machine import Machine, machine, strided
from repro.predict.operators.kernels import Kernels
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.iteration import Phases, optimizer_s, predict_phases
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.workload import Array, Plan, Workload, workload

_WIDTHS = (FULL_ELEMENT_BYTES, FULL_ELEMENT_BYTES)
# Memory that a quantised element moves: 16 bits read and 8 or 4 written, or the reverse.
_QUANTISING_BYTES = {"all_gather": 3.0, "all_to_all": 2.5}
_NO_SCHEME = "none fits"


@dataclass(frozen=True)
class PartitionedStep:
    """Seconds of an iteration, the same on every rank.

    `computing` is forward and backward passes with the host's time, `stragglers` the additional
    time of the slowest GPU. `gather` and `reduce` are times on the wire, of which `exposed` is the
    part that a rank waits for.
    """

    computing: Array
    stragglers: Array
    gather: Array
    reduce: Array
    exposed: Array
    optimizer: Array

    @property
    def time_s(self) -> Array:
        """Iteration time."""
        return np.asarray(self.computing + self.stragglers + self.exposed + self.optimizer)


@dataclass(frozen=True)
class PartitionedTraining:
    """A GPT in a setting on a cluster, whose parameters may be columns of draws."""

    entry: Cluster
    gpt: Shape
    setting: Setting
    where: Machine
    parameters: Parameters

    @cached_property
    def shape(self) -> Shape:
        """Shape of the model with the setting's sequence length."""
        return self.gpt.model_copy(update={"sequence_length": self.setting.sequence_length})

    @cached_property
    def _alone(self) -> Workload:
        """One micro batch on one GPU."""
        size = self.setting.micro_batch_size
        plan = Plan(size, size, recompute=self.setting.recompute)
        return workload("gpt", self.shape, plan).flat()[0]

    @cached_property
    def compute_s(self) -> Phases:
        """Seconds of one micro batch on one GPU."""
        return predict_phases(self._alone, self.where, self.parameters)

    @property
    def backward_s(self) -> Array:
        """Seconds of a micro batch's backward pass, with what it recomputes."""
        return self.compute_s.backward_compute + self.compute_s.recompute

    @property
    def flops(self) -> float:
        """Model FLOPs of a micro batch."""
        return float(training_flops("gpt", self.shape, self.setting.micro_batch_size))

    def changed(self, setting: Mapping[str, Any], link_ratio: float) -> "PartitionedTraining":
        """Return this training with other fields of the setting and other rates between nodes."""
        return replace(
            self,
            setting=self.setting.model_copy(update=setting),
            where=faster_links(self.where, link_ratio),
        )

    def step(self, scheme: Scheme, gpus: int) -> PartitionedStep | None:
        """Predict an iteration; None if groups do not divide the GPUs or memory is not enough."""
        try:
            partition = scheme.on(self.entry.topology, gpus)
        except ReproError:
            return None
        if sum(self.memory_bytes(partition).values()) > self.where.gpu.memory_bytes:
            return None
        units, m = gpt_units(self.shape), self.setting.micro_batches
        layer, around = (self._wire_s(partition, unit) for unit in units)
        wire = {part: self.shape.layers * layer[part] + around[part] for part in layer}
        busy = m * (self.compute_s.forward_compute + self.backward_s + self.compute_s.other)
        stepped = sum(unit.count * shard_sizes(partition, unit).optimizer for unit in units)
        kernels, one = Kernels(self.where.gpu, self.parameters), np.ones(1)
        return PartitionedStep(
            computing=busy,
            stragglers=self.parameters.straggler_fraction * np.log(partition.ranks) * busy,
            gather=m * (wire["forward"] + wire["backward"]) + wire["update"],
            reduce=m * wire["reduce"] + wire["synchronise"],
            exposed=self._exposed_s(layer, around),
            optimizer=optimizer_s(stepped * one, self.shape.layers * one, 0 * one, one, kernels),
        )

    def tflops(self, scheme: Scheme, gpus: int) -> Array:
        """Predict model TFLOP/s per GPU, for each draw; NaN if the scheme cannot run."""
        step = self.step(scheme, gpus)
        if step is None:
            return np.full(1, np.nan)
        return np.asarray(1e-12 * self.flops * self.setting.micro_batches / step.time_s)

    def memory_bytes(self, partition: Partition) -> dict[str, float]:
        """Return a GPU's peak memory by part.

        At the peak two layers are gathered with the weights around them, and one layer's gradients
        are whole.
        """
        layer, around = gpt_units(self.shape)
        states = held_bytes(partition, (layer, around), FULL_ELEMENT_BYTES)
        gathered = 2.0 * shard_sizes(partition, layer).gathered + around.elements
        whole = layer.elements + (gathered if partition.weights > 1 else 0.0)
        return {
            **{name: float(size) for name, size in states.items()},
            "gathered": FULL_ELEMENT_BYTES * whole,
            "activations": float(memory(self._alone).activations[0]),
            "framework": FRAMEWORK_BYTES,
        }

    def _exposed_s(self, layer: dict[str, Array], around: dict[str, Array]) -> Array:
        """Return seconds of an iteration in which a rank waits for collectives."""
        count, m = self.shape.layers, self.setting.micro_batches
        forward_s, backward_s = self.compute_s.forward_compute, self.backward_s

        def waited_s(compute_s: Array | float, *parts: str) -> Array:
            """Add up waits: compute does not cover one layer and what is around the layers."""
            of_layer, of_around = (sum(unit[part] for part in parts) for unit in (layer, around))
            uncovered = np.maximum(of_layer - compute_s / count, 0.0)
            return np.asarray(of_around + of_layer + (count - 1) * uncovered)

        once = waited_s(0.0, "synchronise", "update")
        if self.setting.overlap == "none":
            return m * waited_s(0.0, "forward", "backward", "reduce") + once
        usual = waited_s(forward_s, "forward") + waited_s(backward_s, "backward", "reduce")
        if self.setting.overlap == "passes":
            return m * usual + once
        first = waited_s(forward_s, "forward", "update")
        last = waited_s(backward_s, "backward", "reduce", "synchronise")
        return (m - 1) * usual + first + last

    def _wire_s(self, partition: Partition, unit: Unit) -> dict[str, Array]:
        """Return seconds of a unit's collectives, by field of `UnitTraffic`."""
        traffic = unit_traffic(partition, unit, *_WIDTHS)
        return {
            part: np.asarray(sum((self._call_s(call) for call in calls), start=np.zeros(1)))
            for part, calls in vars(traffic).items()
        }

    def _call_s(self, call: Collective) -> Array:
        """Predict seconds of a collective and its quantising while all groups like it are busy."""
        ranks, stride = np.array([float(call.ranks)]), np.array([float(call.stride)])
        group = strided(ranks, stride, self.where)
        wire = topology_s(call.operation, float(call.size_bytes), group, self.parameters)
        if not call.quantised:
            return wire
        moved = np.array([_QUANTISING_BYTES[call.operation] * call.quantised])
        return wire + Kernels(self.where.gpu, self.parameters).traffic_s(moved)


def partitioned_training(
    parameters: Parameters | None = None, *, on: str | None = None, model: str | None = None
) -> PartitionedTraining:
    """Return the study's model on its cluster, or others, in the base setting.

    Parameters
    ----------
    parameters
        By default the cluster's calibrated ones.
    """
    study = read_partition_study()
    entry = cluster(on or study.predicted.cluster)
    known = parameters or calibration(entry.calibration).parameters
    gpt = study.models[model or study.predicted.model].shape
    return PartitionedTraining(entry, gpt, study.predicted.base, machine(entry, known), known)


def faster_links(machine: Machine, times: float) -> Machine:
    """Return a machine whose rate between nodes is multiplied by `times`."""
    top = machine.levels[-1]
    changed = replace(top, bytes_per_s=top.bytes_per_s * times)
    return replace(machine, levels=(*machine.levels[:-1], changed))


def predict_schemes() -> pd.DataFrame:
    """Predict every scheme on every number of GPUs, in the base setting.

    Returns
    -------
    DataFrame
        `scheme`, `gpus`, `tflops_per_gpu` with its 90 % interval `low` to `high`, and the fields of
        `PartitionedStep`; without schemes that do not fit memory.
    """
    study = read_partition_study()
    known = partitioned_training()
    drawn = partitioned_training(draw_parameters(calibration(known.entry.calibration), known.entry))
    rows = []
    for gpus, (name, scheme) in product(study.predicted.gpus, study.schemes.items()):
        step = known.step(scheme, gpus)
        if step is None:
            continue
        ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
        low, high = np.quantile(drawn.tflops(scheme, gpus), ends)
        rows.append(
            {
                "scheme": name,
                "gpus": gpus,
                "tflops_per_gpu": float(known.tflops(scheme, gpus)[0]),
                "low": low,
                "high": high,
                **{part: float(np.ravel(seconds)[0]) for part, seconds in vars(step).items()},
            }
        )
    return pd.DataFrame(rows)


def bytes_by_level(gpus: int) -> pd.DataFrame:
    """Count the bytes that a GPU sends in an iteration of the base setting, by level of links.

    Returns
    -------
    DataFrame
        `scheme`, `level`, `phase`, `operation`, `sent_bytes` (`repro.collectives.levels`).
    """
    known = partitioned_training()
    topology, units = known.entry.topology, gpt_units(known.shape)
    rows = []
    for name, scheme in read_partition_study().schemes.items():
        partition = scheme.on(topology, gpus)
        for calls in iteration_calls(partition, units, known.setting.micro_batches, *_WIDTHS):
            one = calls.collective
            sent = sent_by_level(one.operation, one.members, one.size_bytes, topology)
            rows += [
                (name, level, calls.phase, one.operation, calls.calls * size)
                for level, size in sent.items()
            ]
    columns = ["scheme", "level", "phase", "operation", "sent_bytes"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(columns[:4], sort=False, as_index=False).sum()


def memory_by_part(gpus: int) -> pd.DataFrame:
    """Return bytes of a GPU by scheme (rows) and part (columns), whether they fit or not."""
    known = partitioned_training()
    held = {
        name: known.memory_bytes(scheme.on(known.entry.topology, gpus))
        for name, scheme in read_partition_study().schemes.items()
    }
    return pd.DataFrame(held).T.rename_axis("scheme")


def sweep_gain(gpus: int, better: str, than: str) -> pd.DataFrame:
    """Predict the ratio of two schemes' throughputs for everything that the study leaves open.

    Returns
    -------
    DataFrame
        The fields of `Setting`, `link_ratio`, and `gain`; NaN where either does not fit.
    """
    study, known = read_partition_study(), partitioned_training()
    schemes = study.scheme(better), study.scheme(than)
    axes = {
        "micro_batch_size": study.predicted.micro_batch_sizes,
        "sequence_length": study.predicted.sequence_lengths,
        "recompute": study.predicted.recomputes,
        "micro_batches": study.predicted.micro_batches,
        "overlap": study.predicted.overlaps,
    }
    rows = []
    for values, ratio in product(product(*axes.values()), study.predicted.link_ratios):
        changed = dict(zip(axes, values, strict=True))
        one = known.changed(changed, ratio)
        ours, theirs = (float(one.tflops(scheme, gpus)[0]) for scheme in schemes)
        rows.append({**changed, "link_ratio": ratio, "gain": ours / theirs})
    return pd.DataFrame(rows)


def map_of_schemes() -> pd.DataFrame:
    """Find the fastest scheme that fits, by cluster, model, micro batches, GPUs and link rate.

    Returns
    -------
    DataFrame
        `cluster`, `model`, `micro_batches`, `gpus`, `link_ratio`; `scheme`, its
        `tflops_per_gpu`, and `ahead`, the ratio to the next one's.
    """
    study = read_partition_study()
    axes, rows = study.predicted, []
    for (domain, numbers), model in product(axes.domains.items(), axes.map_models):
        known = partitioned_training(on=domain, model=model)
        for count, gpus, ratio in product(axes.map_micro_batches, numbers, axes.link_ratios):
            one = known.changed({"micro_batches": count}, ratio)
            found = {name: float(one.tflops(s, gpus)[0]) for name, s in study.schemes.items()}
            ranked = sorted((-value, name) for name, value in found.items() if value == value)
            best, second = (*ranked, (np.nan, _NO_SCHEME), (np.nan, _NO_SCHEME))[:2]
            rows.append(
                {
                    "cluster": domain,
                    "model": model,
                    "micro_batches": count,
                    "gpus": gpus,
                    "link_ratio": ratio,
                    "scheme": best[1],
                    "tflops_per_gpu": -best[0],
                    "ahead": best[0] / second[0],
                }
            )
    return pd.DataFrame(rows)
