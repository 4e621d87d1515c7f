"""Prediction of the testbed itself: emulated GPUs are CPU ranks, links are shaped.

A CPU launches its own work, so that overhead per layer and compute add, while on a GPU they
overlap. All parameters are calibrated on 2 ranks; 4 and 8 ranks, between nodes, are predicted.
Rates of links are those of payload.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import least_squares

from repro.catalog.models.papers import model
from repro.catalog.models.volumes import BACKWARD_PER_FORWARD, forward_flops, ring_all_reduce_bytes
from repro.catalog.phases import COMPUTING
from repro.catalog.studies.experiments import experiment
from repro.predict.workload import Array

_CALIBRATED_RANKS = 2
# Expected largest of n standard normal values, for waiting for the slowest rank.
_EXPECTED_MAXIMUM = {2: 0.564, 4: 1.029, 8: 1.424}


@dataclass(frozen=True)
class CpuRanks:
    """Speed of one emulated GPU.

    Seconds per layer and FLOP/s of each pass, seconds and parameters per second of the optimizer,
    seconds per collective, and the standard deviation between ranks' times in seconds.
    """

    forward_layer_s: float
    forward_flops_per_s: float
    backward_layer_s: float
    backward_flops_per_s: float
    optimizer_s: float
    optimizer_parameters_per_s: float
    collective_s: float
    deviation_s: float


def calibrate_ranks(results: Mapping[str, xr.Dataset]) -> CpuRanks:
    """Calibrate on the configurations with 2 ranks of the measured experiments.

    Parameters
    ----------
    results : mapping
        Datasets of the schema by experiment name, with the testbed as a source.

    Raises
    ------
    KeyError
        No configuration has 2 ranks.
    """
    rows = measured_configurations(results)
    rows = rows[rows.gpus == _CALIBRATED_RANKS]
    # The slowdown of ranks that share a core is known, not predicted.
    alone = rows[[*COMPUTING, "other"]].div(rows.slowdown_factor, axis=0)
    forward, backward = rows.forward_flops, BACKWARD_PER_FORWARD * rows.forward_flops
    steps = pd.Series(1.0, index=rows.index)
    waiting_s = float(rows["straggler wait"].mean())
    return CpuRanks(
        *_fit_line(rows.layers, forward, alone["forward compute"]),
        *_fit_line(rows.layers, backward, alone["backward compute"]),
        *_fit_line(steps, rows.parameters, alone["optimizer"] + alone["other"]),
        collective_s=max(float((rows["gradient sync"] - _wire_s(rows)).median()), 0.0),
        deviation_s=waiting_s / _EXPECTED_MAXIMUM[_CALIBRATED_RANKS],
    )


def predict_testbed(results: Mapping[str, xr.Dataset], ranks: CpuRanks) -> pd.DataFrame:
    """Compare predicted with measured iteration times, in seconds of the testbed.

    Returns
    -------
    DataFrame
        A row per configuration: experiment, model, protocol, gpus, measured_s, predicted_s,
        error_pct, and whether the configuration was `calibrated` on.
    """
    rows = measured_configurations(results)
    computing_s = (
        rows.layers * (ranks.forward_layer_s + ranks.backward_layer_s)
        + rows.forward_flops / ranks.forward_flops_per_s
        + BACKWARD_PER_FORWARD * rows.forward_flops / ranks.backward_flops_per_s
        + ranks.optimizer_s
        + rows.parameters / ranks.optimizer_parameters_per_s
    )
    predicted_s = (
        rows.slowdown_factor * computing_s
        + _wire_s(rows)
        + ranks.collective_s
        + ranks.deviation_s * rows.gpus.map(_EXPECTED_MAXIMUM)
    )
    return rows[["experiment", "model", "protocol", "gpus", "measured_s"]].assign(
        predicted_s=predicted_s,
        error_pct=100 * (predicted_s / rows.measured_s - 1),
        calibrated=rows.gpus == _CALIBRATED_RANKS,
    )


def measured_configurations(results: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Tabulate every measured configuration: model, links, and mean seconds of each phase."""
    parts = []
    for name, dataset in results.items():
        entry, measured = experiment(name), dataset.sel(source="testbed", drop=True)
        times = measured[["phase_time_s", "iteration_time_s"]].mean(["iteration", "rank"])
        columns = times["phase_time_s"].to_dataset("phase")
        columns = columns.merge(
            measured[["parameters", "gradient_bytes", "slowdown_factor"]]
        ).assign(
            measured_s=times["iteration_time_s"], link_gbps=measured["link_set_gbps"].min("level")
        )
        table = columns.to_dataframe(["model", "protocol", "gpus"]).reset_index()
        table = table.dropna(subset="measured_s")
        kinds = [model(each) for each in table.model]
        sizes = [
            entry.batch(each, gpus).micro_batch_size
            for each, gpus in zip(table.model, table.gpus, strict=True)
        ]
        flops = [forward_flops(kind.family, kind.testbed) for kind in kinds]
        parts.append(
            table.assign(
                experiment=name,
                # A decoder layer of t5 counts twice for its second attention.
                layers=[kind.testbed.layers * (3 if kind.family == "t5" else 1) for kind in kinds],
                forward_flops=np.multiply(sizes, flops),
            )
        )
    return pd.concat(parts, ignore_index=True)


def _wire_s(rows: pd.DataFrame) -> pd.Series:
    size = ring_all_reduce_bytes(rows.gradient_bytes, rows.gpus)
    wire: pd.Series = size * 8e-9 / rows.link_gbps
    return wire


def _fit_line(count: pd.Series, work: pd.Series, time_s: pd.Series) -> tuple[float, float]:
    """Fit a and b of time = count x a + work / b, in relative terms."""
    logarithms = np.log(time_s.to_numpy(dtype=float))
    amounts, works = count.to_numpy(dtype=float), work.to_numpy(dtype=float)
    start = np.log([0.5 * np.mean(time_s / amounts), 2 * np.mean(works / time_s)])

    def residuals(x: Array) -> Array:
        each, rate = np.exp(x)
        error: Array = np.log(amounts * each + works / rate) - logarithms
        return error

    each, rate = np.exp(least_squares(residuals, start).x)
    return float(each), float(rate)
