"""Make a calibration from published measurements: fit, cross-validate, and write it down."""

import json
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from repro.atomic import replacing
from repro.catalog.gpus import gpu_labelled
from repro.errors import ReproError
from repro.predict.calibration.fitting import PRIORS, cross_validate, fit
from repro.predict.calibration.interval import ALONE, LEVEL, TENSOR_PARALLEL
from repro.predict.calibration.rings import fit_ring
from repro.predict.parameters import Calibration, Parameters, Residuals
from repro.predict.workload import Array


def calibrate(training: pd.DataFrame, collectives: pd.DataFrame, source: str) -> Calibration:
    """Fit the ring's bus bandwidth to collectives, then the rest to training runs.

    Parameters
    ----------
    training, collectives : DataFrame
        Rows as `repro.predict.calibration.rows.read_rows` reads them.
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
    errors = cross_validate(training, start)
    parallel = training.tp.to_numpy() > 1
    return Calibration(
        source=source,
        date=date.today().isoformat(),
        gpu=_gpu(training),
        parameters=fitted.parameters,
        fitted=fitted.names,
        covariance=tuple(tuple(row) for row in fitted.covariance.tolist()),
        # Without runs of a regime, all runs stand for it.
        residuals={
            ALONE: _residuals(errors[~parallel] if (~parallel).any() else errors),
            TENSOR_PARALLEL: _residuals(errors[parallel] if parallel.any() else errors),
        },
    )


def _gpu(training: pd.DataFrame) -> str:
    """The catalog's name of the one GPU that was measured."""
    found = {gpu_labelled(str(label)) for label in training.gpu.unique()}
    if len(found) > 1:
        raise ReproError(f"training runs on {', '.join(sorted(found))}; calibrate one at a time")
    return found.pop()


def _residuals(errors: Array) -> Residuals:
    return Residuals(
        rows=len(errors),
        mape_pct=float(100 * np.abs(np.expm1(errors)).mean()),
        half_width=float(np.quantile(np.abs(errors), LEVEL)),
    )


def write_calibration(value: Calibration, path: Path) -> None:
    """Write a calibration as YAML with numbers of four digits, atomically."""
    content = value.model_dump(mode="json", exclude_defaults=True)
    lines = ["# Written by `repro calibrate`; what each parameter is: repro.predict.parameters."]
    lines += [f"{key}: {json.dumps(content[key])}" for key in ("source", "date", "gpu")]
    lines += ["parameters:"]
    lines += [f"  {name}: {_short(x)}" for name, x in content["parameters"].items()]
    lines += ["residuals:"]
    for name, entry in content["residuals"].items():
        values = ", ".join(f"{key}: {_short(x)}" for key, x in entry.items())
        lines += [f"  {name}: {{{values}}}"]
    lines += [f"fitted: [{', '.join(content['fitted'])}]", "covariance:"]
    lines += [f"  - [{', '.join(_short(x) for x in row)}]" for row in content["covariance"]]
    with replacing(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _short(value: float) -> str:
    """Four digits, in the form that all YAML readers take for a number."""
    return f"{value:.3e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"
