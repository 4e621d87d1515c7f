"""Calibration of serving software to published latencies, with one model held out at a time."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd

from repro.catalog.systems.serving import ServingCosts, read_serving_stacks
from repro.predict.calibration.fit import (
    group_weights,
    held_out,
    most_probable,
    residuals_of,
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


def fit(known: Known, rows: pd.DataFrame) -> ServingCosts:
    """Fit costs to some rows of a table; a model weighs as the root of its number of rows."""
    weights = group_weights(model_names(rows))
    found = most_probable(
        lambda values: log_errors(known, ServingCosts(**values)).loc[rows.index].to_numpy(),
        PRIORS,
        weights / weights.mean(),
        diff_step=1e-3,
    )
    return ServingCosts(**found.values)


def cross_validate(table: pd.DataFrame, by: pd.Series) -> Array:
    """Return ln(predicted / measured) of every row by a fit without its group."""
    known = known_rows(table)

    def errors_of_fit(seen: Array, held: Array) -> Array:
        return log_errors(known, fit(known, table[seen]))[table.index[held]].to_numpy()

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
        found[name] = ServingFit(
            source=source,
            date=date.today().isoformat(),
            costs=fit(known_rows(rows), rows),
            residuals=residuals_of(cross_validate(rows, model_names(rows))),
        )
    return found
