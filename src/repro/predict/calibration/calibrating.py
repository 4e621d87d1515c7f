"""Make a calibration from published measurements: fit, cross-validate, and write it down."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares
from scipy.special import stdtrit

from repro.atomic import replacing
from repro.catalog.systems.gpus import find_gpu_name
from repro.errors import ReproError
from repro.predict.calibration.fitting import PRIORS, cross_validate, fit, model_sizes
from repro.predict.calibration.interval import (
    ALONE,
    BETWEEN_NODES,
    DEVIATIONS,
    LEVEL,
    TENSOR_PARALLEL,
)
from repro.predict.calibration.link_fitting import rounded
from repro.predict.parameters import Calibration, Parameters, Residuals
from repro.predict.tables.unfused_training import cluster_like
from repro.predict.workload import Array

# Messages from which on the transfer, not the latency, decides.
_LARGE_BYTES = 64e6


@dataclass(frozen=True)
class Ring:
    """busbw(n) = efficiency x nominal link rate x n / (n + ramp)."""

    efficiency: float
    ramp: float


def fit_ring(rows: pd.DataFrame) -> Ring:
    """Fit large all-reduces of A100 behind NVLink switches."""
    chosen = rows[
        (rows.gpu == "A100")
        & (rows.collective == "all_reduce")
        & (rows.nodes == 1)
        & (rows.size_bytes >= _LARGE_BYTES)
    ]
    ranks = chosen.ranks.to_numpy(dtype=float)
    size, time = chosen.size_bytes.to_numpy(dtype=float), chosen.time_us.to_numpy() * 1e-6
    dgx = cluster_like("A100-SXM-80GB", 8, 1600.0)
    nominal = dgx.topology.levels[-2].link_gbps * 1e9 / 8

    def log_error(x: Array) -> Array:
        efficiency, ramp, latency = np.exp(x)
        bus = efficiency * nominal * ranks / (ranks + ramp)
        predicted = 2 * (ranks - 1) / ranks * size / bus + latency
        error: Array = np.log(predicted / time)
        return error

    found = np.exp(least_squares(log_error, np.log([0.8, 0.5, 5e-5])).x)
    return Ring(float(found[0]), float(found[1]))


def calibrate(training: pd.DataFrame, collectives: pd.DataFrame, source: str) -> Calibration:
    """Fit the ring's bus bandwidth to collectives, then the rest to training runs.

    Parameters
    ----------
    training, collectives : DataFrame
        Rows as `repro.predict.tables.reading.read_rows` reads them.
    source : str
        Where the measurements come from.

    Raises
    ------
    ReproError
        The training runs are of a GPU that is not in the catalog, or of several.
    """
    ring = fit_ring(collectives)
    medians = {name: prior.median for name, prior in PRIORS.items()}
    start = Parameters(**medians, collective_efficiency=ring.efficiency, ring_ramp=ring.ramp)
    fitted = fit(training, start)
    errors = cross_validate(training, model_sizes(training), start).to_numpy(dtype=float)
    parallel = training.tp.to_numpy() > 1
    residuals = {
        # Without runs of a regime, all runs stand for it.
        ALONE: residuals_of(errors[~parallel] if (~parallel).any() else errors),
        TENSOR_PARALLEL: residuals_of(errors[parallel] if parallel.any() else errors),
    }
    between = training[training.gpus > training.gpus_per_node]
    counts = between.gpus.nunique()
    if counts > 1:
        # What runs between nodes miss, all runs of as many GPUs miss alike.
        missed = cross_validate(training, between.gpus, start).to_numpy(dtype=float)
        residuals[BETWEEN_NODES] = residuals_of(missed, counts)
    return Calibration(
        source=source,
        date=date.today().isoformat(),
        gpu=_gpu(training),
        parameters=fitted.parameters,
        fitted=fitted.names,
        covariance=tuple(tuple(row) for row in fitted.covariance.tolist()),
        residuals=residuals,
    )


def _gpu(training: pd.DataFrame) -> str:
    """The catalog's name of the one GPU that was measured."""
    found = {find_gpu_name(str(label)) for label in training.gpu.unique()}
    if len(found) > 1:
        raise ReproError(f"training runs on {', '.join(sorted(found))}; calibrate one at a time")
    return found.pop()


def residuals_of(errors: Array, groups: int | None = None) -> Residuals:
    """What ln(predicted / measured) of rows that a fit has not seen says of others.

    Of few `groups` with an error each that their rows share, Student's t makes of it what it says
    of the next group; None: every row has its own.
    """
    few = 1.0 if groups is None else stdtrit(groups - 1, (1 + LEVEL) / 2) / DEVIATIONS
    return Residuals(
        rows=len(errors),
        mape_pct=float(100 * np.abs(np.expm1(errors)).mean()),
        half_width=float(few * np.quantile(np.abs(errors), LEVEL)),
    )


def write_calibration(value: Calibration, path: Path) -> None:
    """Write a calibration as YAML with numbers of four digits, atomically."""
    content = rounded(value.model_dump(mode="json", exclude_defaults=True))
    lines = "# Written by `repro calibrate`; what each parameter is: repro.predict.parameters.\n"
    first = {name: content[name] for name in ("source", "date", "gpu", "parameters")}
    rest = {name: content[name] for name in ("residuals", "fitted", "covariance")}
    with replacing(path) as temporary:
        temporary.write_text(
            lines
            + yaml.safe_dump(first, sort_keys=False)
            # A row of the covariance is a line.
            + yaml.safe_dump(rest, sort_keys=False, default_flow_style=None, width=10**6),
            encoding="utf-8",
        )
