"""Fit what serving software costs beside its kernels; judge it on models a fit has not seen."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from repro.atomic import replace_text
from repro.catalog.systems.serving import ServingCosts, read_serving_stacks
from repro.predict.calibration.calibrating import residuals_of
from repro.predict.calibration.link_fitting import rounded
from repro.predict.calibration.robust import most_probable
from repro.predict.parameters import Prior
from repro.predict.serving.latency import Passes, latency, passes
from repro.predict.serving.parameters import ServingFit
from repro.predict.tables.serving import ServingRows, serving_rows
from repro.predict.workload import Array

PRIORS: Mapping[str, Prior] = {
    # A kernel that depends on the one before starts 1 to 5 us after its end, without a graph.
    "gap_s": Prior(3e-6, 0.7),
    "arrival_s": Prior(1e-5, 1.0),
    "hop_s": Prior(1e-5, 0.7),
    "step_s": Prior(5e-4, 1.0),
    "sequence_s": Prior(3e-5, 1.0),
    # Products have the fastest of the library's kernels for each shape, found beforehand.
    "products": Prior(1.0, 0.07),
    "reading": Prior(0.8, 0.15),
    # Biases and transpositions are kernels of their own.
    "traffic": Prior(2.0, 0.4),
}


@dataclass(frozen=True)
class KnownRows:
    """Rows with their operators, which no cost changes."""

    part: ServingRows
    of: Passes


def known_rows(table: pd.DataFrame) -> list[KnownRows]:
    """A table's rows by engine (`repro.predict.tables.serving.serving_rows`)."""
    return [KnownRows(part, passes(part.rows, part.engine)) for part in serving_rows(table)]


def log_errors(known: list[KnownRows], costs: ServingCosts) -> pd.Series:
    """ln(predicted / measured), by the table's index."""
    return pd.concat(
        [
            pd.Series(
                np.log(latency(one.of, replace(one.part.engine, costs=costs)).total_s)
                - np.log(one.part.total_s),
                index=one.part.index,
            )
            for one in known
        ]
    ).sort_index()


def fit(known: list[KnownRows], index: pd.Index, weights: Array) -> ServingCosts:
    """The most probable costs of the rows of an index."""
    found = most_probable(
        lambda values: log_errors(known, ServingCosts(**values)).loc[index].to_numpy(),
        weights,
        PRIORS,
        diff_step=1e-3,
    )
    return ServingCosts(**found.values)


def model_weights(by: pd.Series) -> Array:
    """A group's rows weigh as their root."""
    count = by.groupby(by).transform("size").to_numpy(dtype=float)
    weights = 1 / np.sqrt(count)
    relative: Array = weights / weights.mean()
    return relative


def cross_validate(table: pd.DataFrame, by: pd.Series) -> Array:
    """ln(predicted / measured) of every row, by fits that have seen no row of its group."""
    known, models = known_rows(table), model_names(table)
    errors = pd.Series(np.nan, index=table.index)
    for group in by.unique():
        held = by == group
        seen = table.index[~held]
        costs = fit(known, seen, model_weights(models.loc[seen]))
        errors[held] = log_errors(known, costs).loc[table.index[held]]
    return errors.to_numpy()


def model_names(table: pd.DataFrame) -> pd.Series:
    """Layers by hidden size, which tell published models apart."""
    return table.layers.astype(str) + "x" + table.hidden.astype(str)


def calibrate_serving(table: pd.DataFrame, source: str) -> dict[str, ServingFit]:
    """Fit published latencies of each software whose costs are not known otherwise, and hold out
    one model after the other."""
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
            costs=fit(known_rows(rows), rows.index, model_weights(models)),
            residuals=residuals_of(cross_validate(rows, models)),
        )
    return found


def write_serving(found: Mapping[str, ServingFit], path: Path) -> None:
    """Write it as YAML with numbers of four digits."""
    lines = "# Written by `repro calibrate`; what each cost is: repro.catalog.systems.serving.\n"
    content = {name: rounded(one.model_dump(mode="json")) for name, one in found.items()}
    text = yaml.safe_dump(content, sort_keys=False)
    replace_text(path, lines + text)
