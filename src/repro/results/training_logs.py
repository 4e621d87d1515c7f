"""Dataset of the runs of a training log, with source `log`.

Dimensions are `source`, `run` (from 1), `iteration` (position in the run) and `timer` (names
as the tool prints them). A log has neither ranks, the schema's phases, network counters nor single
messages. The dataset has no variables of these, and quantities that need them do not apply.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import xarray as xr

from repro.logs.training.reading import TrainingLog
from repro.observe.environment import provenance

_MISSING = "ranks, phases of the schema, NIC counters, messages: the log does not have them"
_OF_ITERATIONS = {
    "time_s": ("iteration_time_s", "iteration time", "s"),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu", "throughput of a GPU", "1/s"),
    "tflops_per_gpu": ("tflops_per_gpu", "throughput of a GPU by the tool's count", "TFLOP/s"),
    "memory_bytes": ("peak_memory_bytes", "most memory of a GPU", "B"),
    "global_batch": ("global_batch_size", "sequences of the iteration", "1"),
    "iteration": ("iteration_number", "number as printed", "1"),
}


def log_dataset(
    log: TrainingLog, text: str, name: str, models: Sequence[str] | None = None
) -> xr.Dataset:
    """Return the runs of a log as a dataset; where runs differ in length, the rest is NaN.

    Parameters
    ----------
    text, name
        Content and name of the file, for the provenance.
    models
        Model of each run. Default: not stated.
    """
    longest = max(len(run.steps) for run in log.runs)
    timers = sorted({timer for run in log.runs for timer in run.phases_s})
    dims = ("source", "run", "iteration")
    variables: dict[str, xr.Variable] = {}
    for column, (variable, long_name, units) in _OF_ITERATIONS.items():
        values = np.full((1, len(log.runs), longest), np.nan)
        for at, run in enumerate(log.runs):
            values[0, at, : len(run.steps)] = run.steps[column].to_numpy(float)
        attributes = {"long_name": long_name, "units": units}
        variables[variable] = xr.Variable(dims, values, attributes)
    kinds = np.full((1, len(log.runs), longest), "", dtype="U16")
    for at, run in enumerate(log.runs):
        kinds[0, at, : len(run.steps)] = run.steps.kind
    variables["kind"] = xr.Variable(dims, kinds, {"long_name": "kind of iteration"})
    times = [[[run.phases_s.get(timer, np.nan) for timer in timers] for run in log.runs]]
    variables["timer_time_s"] = xr.Variable(
        ("source", "run", "timer"),
        np.array(times).reshape(1, len(log.runs), len(timers)),
        {"long_name": "median of the timer", "units": "s"},
    )
    of_runs = {
        "tool": [run.tool for run in log.runs],
        "gpus": [run.stated.get("gpus", np.nan) for run in log.runs],
        "model": list(models or [""] * len(log.runs)),
    }
    return xr.Dataset(
        variables,
        coords={
            "source": ["log"],
            "run": np.arange(1, len(log.runs) + 1),
            "iteration": np.arange(longest),
            "timer": timers,
            **{key: ("run", values) for key, values in of_runs.items()},
        },
        attrs={
            "title": f"Training log {name}",
            "provenance": provenance(
                {"log": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
            ),
            "missing": _MISSING,
            "warnings": "; ".join(warning for run in log.runs for warning in run.warnings),
        },
    )
