"""Fit of the model of today's software to runs of one's own, as far as these bear it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from repro.predict.calibration.software_fitting import (
    TRAINING_PRIORS,
    fitting_of_runs,
    parameters_of,
)
from repro.predict.fused.parameters import (
    FusedCalibration,
    read_fused,
    sustained_name,
    sustained_share,
)
from repro.predict.fused.run import GENERATIONS, PRECISIONS, Run
from repro.predict.parameters import Prior
from repro.predict.workload import Array

# Of a generation that has no published runs.
_UNKNOWN_DEVIATION = 0.15


@dataclass(frozen=True)
class OwnFit:
    """Calibration with parameters fitted to a few runs.

    Attributes
    ----------
    runs
        A row per run: measured_s, and errors in percent, predicted / measured - 1: published_pct by
        the calibration before, fitted_pct, and held_out_pct by a fit to the other runs (NaN of a
        single run).
    """

    calibration: FusedCalibration
    runs: pd.DataFrame


def fit_own_runs(run: Run, measured_s: Array, gpus: tuple[str, ...], source: str) -> OwnFit:
    """Fit parameters to measured iteration times, starting from those of published runs.

    Each may differ from the published value as much as its prior was uncertain, so a run moves only
    what its time depends on. Intervals stay those of the published runs: a few runs of one machine
    say nothing about models that it has not run.

    Parameters
    ----------
    gpus
        Names of catalogued GPUs that were used.
    source
        What the runs are from.
    """
    published = read_fused()
    priors = _priors(run, published)
    fitting = fitting_of_runs(run, measured_s, priors, np.ones(len(measured_s)))
    values = fitting.fit()
    held_out = fitting.cross_validate(pd.Series(range(len(measured_s)), name="run"))
    medians = {name: prior.median for name, prior in priors.items()}
    errors = {
        "published_pct": fitting.log_errors(medians, slice(None)),
        "fitted_pct": fitting.log_errors(values, slice(None)),
        "held_out_pct": held_out,
    }
    runs = pd.DataFrame({name: 100 * np.expm1(error) for name, error in errors.items()})
    runs.insert(0, "measured_s", measured_s)
    calibration = published.model_copy(
        update={
            "source": f"{published.source}, {source}",
            "gpus": tuple(dict.fromkeys((*published.gpus, *gpus))),
            "parameters": parameters_of(values),
        }
    )
    return OwnFit(calibration, runs)


def _priors(run: Run, published: FusedCalibration) -> Mapping[str, Prior]:
    """Return priors around published values; a generation without any starts from all others."""
    parameters = published.parameters
    found = {}
    for name, prior in TRAINING_PRIORS.items():
        field, _, rest = name.partition(" ")
        value = getattr(parameters, field)
        found[name] = Prior(value[rest] if rest else value, prior.deviation)
    ran = {
        (GENERATIONS[int(generation)], PRECISIONS[int(precision)])
        for generation, precision in zip(run.generation, run.precision, strict=True)
    }
    for generation, precision in sorted(ran):
        name = f"sustained {sustained_name(generation, precision)}"
        share = sustained_share(parameters, generation, precision)
        found.setdefault(name, Prior(share, _UNKNOWN_DEVIATION))
    return found
