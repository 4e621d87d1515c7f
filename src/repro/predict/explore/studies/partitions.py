"""The study of hierarchical partitioning at full scale: schemes by GPUs, sweeps, and a map."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES
from repro.catalog.parallel.partitions import Scheme, gpt_units, iteration_calls
from repro.catalog.studies.partitions import Setting, read_partition_study
from repro.catalog.systems.clusters import Cluster, cluster
from repro.collectives.levels import sent_by_level
from repro.errors import ReproError
from repro.predict.calibration.interval import LEVEL, draw_parameters
from repro.predict.explore.studies.partitioned_step import (
    Computing,
    Step,
    computing,
    faster_links,
    fits,
    memory_bytes,
    predict_step,
)
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.workload import Array

_NO_SCHEME = "none fits"


@dataclass(frozen=True)
class Trained:
    """A model in a setting on a cluster, by calibrated parameters; `own` is what a GPU computes."""

    entry: Cluster
    shape: Shape
    setting: Setting
    where: Machine
    parameters: Parameters
    own: Computing

    def step(self, scheme: Scheme, gpus: int) -> Step | None:
        """An iteration; None where groups do not divide the GPUs, or memory is not enough."""
        try:
            partition = scheme.on(self.entry.topology, gpus)
        except ReproError:
            return None
        if not fits(self.shape, partition, self.own, self.where):
            return None
        args = (self.shape, partition, self.setting, self.own, self.where, self.parameters)
        return predict_step(*args)

    def tflops(self, scheme: Scheme, gpus: int) -> Array:
        """Model TFLOP/s of a GPU, a value for each draw of the parameters; NaN where `step` is
        None."""
        step = self.step(scheme, gpus)
        if step is None:
            return np.full(1, np.nan)
        return np.asarray(1e-12 * self.own.flops * self.setting.micro_batches / step.time_s)


def trained(
    parameters: Parameters | None = None,
    *,
    on: str | None = None,
    model: str | None = None,
    setting: Setting | None = None,
) -> Trained:
    """The study's model on its cluster in its base setting, or others; by default with the
    cluster's calibrated parameters."""
    study = read_partition_study()
    entry = cluster(on or study.predicted.cluster)
    known = parameters or calibration(entry.calibration).parameters
    chosen = setting or study.predicted.base
    shape = study.models[model or study.predicted.model].shape
    shape = shape.model_copy(update={"sequence_length": chosen.sequence_length})
    where = machine(entry, known)
    return Trained(entry, shape, chosen, where, known, computing(shape, chosen, where, known))


def predict_schemes() -> pd.DataFrame:
    """Every scheme on every number of GPUs, in the base setting.

    Returns
    -------
    DataFrame
        `scheme`, `gpus`, `tflops_per_gpu` with `low` and `high`; seconds of the parts of `Step` as
        `computing`, `stragglers`, `gather`, `reduce`, `exposed`, `optimizer`; rows that do not fit
        memory are left out.
    """
    study = read_partition_study()
    known = trained()
    drawn = trained(draw_parameters(calibration(known.entry.calibration), known.entry))
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
    """What a GPU sends in an iteration of the base setting, by the level of links that it crosses.

    Returns
    -------
    DataFrame
        `scheme`, `level`, `phase`, `operation`, `sent_bytes` (`repro.collectives.levels`).
    """
    study, known = read_partition_study(), trained()
    topology, units = known.entry.topology, gpt_units(known.shape)
    widths = (FULL_ELEMENT_BYTES, FULL_ELEMENT_BYTES)
    rows = []
    for name, scheme in study.schemes.items():
        partition = scheme.on(topology, gpus)
        for calls in iteration_calls(partition, units, known.setting.micro_batches, *widths):
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
    """What a GPU holds, by `scheme` (rows) and part (columns), in bytes, whether it fits or not."""
    study, known = read_partition_study(), trained()
    held = {
        name: memory_bytes(known.shape, scheme.on(known.entry.topology, gpus), known.own)
        for name, scheme in study.schemes.items()
    }
    return pd.DataFrame(held).T.rename_axis("scheme")


def sweep_gain(gpus: int, better: str, than: str) -> pd.DataFrame:
    """How many times the throughput of one scheme another has, for everything that is left open.

    Returns
    -------
    DataFrame
        The fields of `Setting`, `link_ratio`, and `gain`; NaN where one of both does not fit.
    """
    study = read_partition_study()
    axes, rows = study.predicted, []
    schemes = study.scheme(better), study.scheme(than)
    for size, length, recompute in product(
        axes.micro_batch_sizes, axes.sequence_lengths, axes.recomputes
    ):
        changed = {"micro_batch_size": size, "sequence_length": length, "recompute": recompute}
        # What a GPU computes of a micro batch depends on nothing else.
        known = trained(setting=axes.base.model_copy(update=changed))
        for count, overlap, ratio in product(axes.micro_batches, axes.overlaps, axes.link_ratios):
            rest = {"micro_batches": count, "overlap": overlap}
            one = replace(
                known,
                setting=known.setting.model_copy(update=rest),
                where=faster_links(known.where, ratio),
            )
            ours, theirs = (float(one.tflops(scheme, gpus)[0]) for scheme in schemes)
            rows.append({**changed, **rest, "link_ratio": ratio, "gain": ours / theirs})
    return pd.DataFrame(rows)


def map_of_schemes() -> pd.DataFrame:
    """Which scheme is the fastest that fits, over domains, GPUs, rates between nodes, models and
    numbers of micro batches; the rest is the base setting.

    Returns
    -------
    DataFrame
        `cluster`, `model`, `micro_batches`, `gpus`, `link_ratio`; `scheme`, its
        `tflops_per_gpu`, and `ahead`, the ratio to the next one's.
    """
    study = read_partition_study()
    axes, rows = study.predicted, []
    cases = product(axes.domains.items(), axes.map_models, axes.map_micro_batches)
    for (domain, numbers), model, count in cases:
        setting = axes.base.model_copy(update={"micro_batches": count})
        usual = trained(on=domain, model=model, setting=setting)
        for gpus, ratio in product(numbers, axes.link_ratios):
            one = replace(usual, where=faster_links(usual.where, ratio))
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
