"""Predict the testbed itself: emulated GPUs are CPU ranks at a constant pace, links are shaped.

A CPU launches its own work, so its times add where a GPU's overlap: an overhead per layer and pass,
and FLOPs over a rate. Everything is calibrated on 2 ranks; 4 and 8 ranks, between nodes, are
predicted. Rates of links are those of payload.
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
    """One emulated GPU: seconds per layer and pass, FLOP/s, the optimizer's seconds and parameters
    per second, seconds per collective, and the deviation between ranks' times in seconds."""

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
    rows = configurations(results)
    rows = rows[rows.gpus == _CALIBRATED_RANKS]
    # As fast as one rank alone; how slow ranks are beside each other is known, not predicted.
    alone = rows[[*COMPUTING, "other"]].div(rows.slower, axis=0)
    forward = _fit_line(rows.layers, rows.forward_flops, alone["forward compute"])
    backward = _fit_line(
        rows.layers, BACKWARD_PER_FORWARD * rows.forward_flops, alone["backward compute"]
    )
    optimizer = _fit_line(
        pd.Series(1.0, index=rows.index), rows.parameters, alone["optimizer"] + alone["other"]
    )
    waiting = rows["straggler wait"].mean() / _EXPECTED_MAXIMUM[_CALIBRATED_RANKS]
    return CpuRanks(
        forward_layer_s=forward[0],
        forward_flops_per_s=forward[1],
        backward_layer_s=backward[0],
        backward_flops_per_s=backward[1],
        optimizer_s=optimizer[0],
        optimizer_parameters_per_s=optimizer[1],
        collective_s=max(float((rows["gradient sync"] - _wire_s(rows)).median()), 0.0),
        deviation_s=float(waiting),
    )


def predict_testbed(results: Mapping[str, xr.Dataset], ranks: CpuRanks) -> pd.DataFrame:
    """Predicted beside measured iteration times, in seconds of the testbed.

    Returns
    -------
    DataFrame
        A row per configuration: experiment, model, protocol, gpus, measured_s, predicted_s,
        and whether the configuration was `calibrated` on.
    """
    rows = configurations(results)
    computing = (
        rows.layers * (ranks.forward_layer_s + ranks.backward_layer_s)
        + rows.forward_flops / ranks.forward_flops_per_s
        + BACKWARD_PER_FORWARD * rows.forward_flops / ranks.backward_flops_per_s
        + ranks.optimizer_s
        + rows.parameters / ranks.optimizer_parameters_per_s
    )
    predicted = (
        rows.slower * computing
        + _wire_s(rows)
        + ranks.collective_s
        + ranks.deviation_s * rows.gpus.map(_EXPECTED_MAXIMUM)
    )
    return rows[["experiment", "model", "protocol", "gpus", "measured_s"]].assign(
        predicted_s=predicted, calibrated=rows.gpus == _CALIBRATED_RANKS
    )


def error_table(rows: pd.DataFrame) -> pd.DataFrame:
    """How far off predictions are, in percent, by protocol and GPUs; without calibrated rows."""
    judged = rows[~rows.calibrated].assign(error_pct=error_pct)
    return judged.groupby(["protocol", "gpus"]).error_pct.describe().round(1)


def mean_error_pct(rows: pd.DataFrame) -> float:
    """The mean absolute error of what was not calibrated on, in percent."""
    return float(error_pct(rows[~rows.calibrated]).abs().mean())


def error_pct(rows: pd.DataFrame) -> pd.Series:
    """How far off each prediction is, in percent."""
    return 100 * (rows.predicted_s / rows.measured_s - 1)


def configurations(results: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Every measured configuration: what was trained, on which links, and its mean phases."""
    rows = []
    for name, dataset in results.items():
        entry = experiment(name)
        measured = dataset.sel(source="testbed")
        phases = measured["phase_time_s"].mean(["iteration", "rank"])
        times = measured["iteration_time_s"].mean(["iteration", "rank"])
        for where in times.stack(at=["model", "protocol", "gpus"]).dropna("at")["at"].values:
            studied, transport, gpus = where
            at = {"model": studied, "protocol": transport, "gpus": gpus}
            kind = model(studied)
            # Of the levels that its ranks use.
            links = measured["link_set_gbps"].sel(at)
            by_phase = {str(key): float(v) for key, v in phases.sel(at).to_series().items()}
            rows.append(
                {
                    "experiment": name,
                    **at,
                    **by_phase,
                    "measured_s": float(times.sel(at)),
                    # A decoder layer of t5 counts twice for its second attention.
                    "layers": kind.testbed.layers * (3 if kind.family == "t5" else 1),
                    "forward_flops": entry.batch(studied, int(gpus)).micro_batch_size
                    * forward_flops(kind.family, kind.testbed),
                    "parameters": float(measured["parameters"].sel(at)),
                    "gradient_bytes": float(measured["gradient_bytes"].sel(at)),
                    "link_gbps": float(links.min()),
                    "slower": float(measured["slower"].sel(at)),
                }
            )
    return pd.DataFrame(rows)


def _wire_s(rows: pd.DataFrame) -> pd.Series:
    size = ring_all_reduce_bytes(rows.gradient_bytes, rows.gpus)
    wire: pd.Series = size * 8e-9 / rows.link_gbps
    return wire


def _fit_line(count: pd.Series, work: pd.Series, time_s: pd.Series) -> tuple[float, float]:
    """Seconds per count and work per second of time = count x a + work / b, in relative terms."""
    logarithms = np.log(time_s.to_numpy(dtype=float))
    amounts, works = count.to_numpy(dtype=float), work.to_numpy(dtype=float)
    start = np.log([0.5 * np.mean(time_s / amounts), 2 * np.mean(works / time_s)])

    def residuals(x: Array) -> Array:
        each, rate = np.exp(x)
        error: Array = np.log(amounts * each + works / rate) - logarithms
        return error

    each, rate = np.exp(least_squares(residuals, start).x)
    return float(each), float(rate)
