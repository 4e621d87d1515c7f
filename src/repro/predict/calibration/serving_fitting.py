"""Calibration of serving software to published latencies, with one model held out at a time."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from repro.atomic import replace_text
from repro.catalog.systems.serving import ServingCosts, read_serving_stacks
from repro.predict.calibration.fit import (
    held_out,
    most_probable,
    relative_weights,
    residuals_of,
    yaml_text,
)
from repro.predict.parameters import Prior
from repro.predict.serving.latency import Passes, latency, passes
from repro.predict.serving.parameters import ServingFit
from repro.predict.tables.serving import ServingRows, serving_rows
from repro.predict.workload import Array

PRIORS: Mapping[str, Prior] = {
    # Without a CUDA graph, a dependent kernel starts 1 to 5 us after the end of the one before.
    "gap_s": Prior(3e-6, 0.7),
    "arrival_s": Prior(1e-5, 1.0),
    "hop_s": Prior(1e-5, 0.7),
    "step_s": Prior(5e-4, 1.0),
    "sequence_s": Prior(3e-5, 1.0),
    # Matmuls use the library's fastest kernel for each shape, chosen beforehand.
    "products": Prior(1.0, 0.07),
    "reading": Prior(0.8, 0.15),
    # Biases and transpositions are separate kernels.
    "traffic": Prior(2.0, 0.4),
}


# Rows of each engine with their operators, which do not depend on fitted costs.
Known = list[tuple[ServingRows, Passes]]


def known_rows(table: pd.DataFrame) -> Known:
    """Return a table's rows by engine (`repro.predict.tables.serving.serving_rows`)."""
    return [(part, passes(part.rows, part.engine)) for part in serving_rows(table)]


def log_errors(known: Known, costs: ServingCosts) -> pd.Series:
    """Return ln(predicted / measured) by the table's index."""
    parts = []
    for part, of in known:
        predicted_s = latency(of, replace(part.engine, costs=costs)).total_s
        parts.append(pd.Series(np.log(predicted_s) - np.log(part.total_s), index=part.index))
    return pd.concat(parts).sort_index()


def fit(known: Known, index: pd.Index, weights: Array) -> ServingCosts:
    """Fit costs to the rows of an index."""
    found = most_probable(
        lambda values: log_errors(known, ServingCosts(**values)).loc[index].to_numpy(),
        PRIORS,
        weights,
        diff_step=1e-3,
    )
    return ServingCosts(**found.values)


def cross_validate(table: pd.DataFrame, by: pd.Series) -> Array:
    """Return ln(predicted / measured) of every row by a fit without its group."""
    known, models = known_rows(table), model_names(table)

    def errors_of_fit(seen: Array, held: Array) -> Array:
        costs = fit(known, table.index[seen], relative_weights(models[seen]))
        return log_errors(known, costs)[table.index[held]].to_numpy()

    return held_out(by, errors_of_fit).to_numpy()


def model_names(table: pd.DataFrame) -> pd.Series:
    """Name the model of each row by layers and hidden size."""
    return table.layers.astype(str) + "x" + table.hidden.astype(str)


def calibrate_serving(table: pd.DataFrame, source: str) -> dict[str, ServingFit]:
    """Fit costs of each software without known costs; residuals are of held-out models."""
    found = {}
    for name, stack in read_serving_stacks().items():
        if stack.costs is not None:
            continue
        own = [part.index for part in serving_rows(table) if part.engine.stack == stack]
        rows = table.loc[np.concatenate(own)]
        models = model_names(rows)
        found[name] = ServingFit(
            source=source,
            date=date.today().isoformat(),
            costs=fit(known_rows(rows), rows.index, relative_weights(models)),
            residuals=residuals_of(cross_validate(rows, models)),
        )
    return found


def write_serving(found: Mapping[str, ServingFit], path: Path) -> None:
    """Write calibrations by software as YAML, atomically."""
    header = "# Written by `repro calibrate`; what each cost is: repro.catalog.systems.serving.\n"
    replace_text(path, header + yaml_text(found))
