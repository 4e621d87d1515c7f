"""Verdicts of the reference run, and the comparison of other runs with it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from repro.atomic import replacing
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.claims.findings import Finding, Judgement, Source, judgement, unanswered
from repro.claims.published import Claim
from repro.errors import ReproError
from repro.results.cells import cell_table, cells
from repro.results.reference import (
    NONE_KEPT,
    OWN_REFERENCE,
    REFERENCE,
    SOURCE,
    keep_reference,
    read_reference,
)
from repro.results.store import has_runs, why_not_run

_VERDICTS = "claims.csv"
_PARTS = ("value", "low", "high", "verdict", "reason")
_KEPT: tuple[Source, ...] = ("predicted", "testbed")
_COLUMNS = [f"{source}_{part}" for source in _KEPT for part in _PARTS]
_NO_NODES = unanswered("the reference run is one of the testbed")


def keep_run(
    results: Mapping[str, xr.Dataset],
    judgements: Iterable[Judgement],
    folder: Path = OWN_REFERENCE,
) -> list[Path]:
    """Write means, intervals and verdicts of a run to small files for git.

    Parameters
    ----------
    results
        Datasets by experiment.
    judgements
        Judgements of claims on these datasets.

    Raises
    ------
    ReproError
        An experiment was not measured on the testbed.
    """
    measured = {name: results[name] for name in EXPERIMENTS if name in results}
    for name, dataset in measured.items():
        if not has_runs(dataset) or SOURCE not in dataset["source"].values:
            reason = why_not_run(dataset) or f"not on source {SOURCE}"
            raise ReproError(f"{name}: nothing was measured to keep ({reason}); fix: make repro")
    paths = [keep_reference(name, dataset, folder) for name, dataset in measured.items()]
    return [*paths, keep_verdicts(judgements, folder)]


def keep_verdicts(judgements: Iterable[Judgement], folder: Path = OWN_REFERENCE) -> Path:
    """Write the findings of the prediction and of the testbed to the folder's `claims.csv`."""
    rows = {
        one.id: [
            part
            for found in (one.findings[source] for source in _KEPT)
            for part in (
                found.value,
                *(found.interval or (None, None)),
                found.verdict,
                found.reason,
            )
        ]
        for one in judgements
    }
    table = pd.DataFrame.from_dict(rows, "index", columns=_COLUMNS).rename_axis("id")
    path = folder / _VERDICTS
    with replacing(path) as temporary:
        table.to_csv(temporary, float_format="%.6g", lineterminator="\n")
    return path


def judge_reference(claims: Sequence[Claim], folder: Path = REFERENCE) -> list[Judgement]:
    """Read the judgements of claims on the reference run and on its predictions.

    Raises
    ------
    ReproError
        There is no reference run.
    """
    path = folder / _VERDICTS
    if not path.exists():
        raise ReproError(NONE_KEPT)
    rows = pd.read_csv(path, index_col="id").to_dict("index")
    return [
        judgement(
            claim,
            {source: _finding(rows[claim.id], source) for source in _KEPT} | {"cluster": _NO_NODES},
        )
        for claim in claims
        if claim.id in rows
    ]


def _finding(row: Mapping[Any, Any], source: Source) -> Finding:
    value, low, high, verdict, reason = (row[f"{source}_{part}"] for part in _PARTS)
    return Finding(
        None if pd.isna(value) else float(value),
        None if pd.isna(low) else (float(low), float(high)),
        verdict,
        "" if pd.isna(reason) else reason,
    )


def reference_run(folder: Path = REFERENCE) -> str:
    """Return when, with which profile and on which machine the reference run was measured."""
    described = (read_reference(name, folder).attrs.get("reference", "") for name in EXPERIMENTS)
    return next(filter(None, described), NONE_KEPT)


def compare(results: Mapping[str, xr.Dataset], folder: Path = REFERENCE) -> pd.DataFrame:
    """Compare a run with the reference run.

    Returns
    -------
    DataFrame
        One row per experiment, quantity and configuration that both have, indexed by them: values
        with the ends of their intervals (`low`, `high`; `_reference` for the reference run), their
        `ratio`, and whether the intervals overlap (`agrees`).

    Raises
    ------
    ReproError
        There is no reference run, or the two have nothing in common.
    """
    parts = {}
    for name, dataset in results.items():
        reference = read_reference(name, folder)
        if has_runs(reference) and has_runs(dataset) and SOURCE in dataset["source"].values:
            here = cell_table(cells(dataset.sel(source=[SOURCE])))
            both = here.join(cell_table(reference["cells"]), rsuffix="_reference", how="inner")
            cell = [", ".join(f"{part}" for part in index[1:]) for index in both.index]
            parts[name] = both.assign(cell=cell).reset_index()
    if not any(map(len, parts.values())):
        raise ReproError(f"nothing to compare: {_why_nothing(results, folder)}")
    rows = pd.concat(parts, names=["experiment"]).reset_index("experiment")
    rows["ratio"] = rows["value"] / rows["value_reference"]
    rows["agrees"] = (rows["low"] <= rows["high_reference"]) & (
        rows["low_reference"] <= rows["high"]
    )
    return rows.set_index(["experiment", "quantity", "cell"])[_COMPARED]


_COMPARED = [
    *("value", "low", "high", "value_reference", "low_reference", "high_reference"),
    *("ratio", "agrees"),
]


def agreement(compared: pd.DataFrame) -> pd.DataFrame:
    """Count the results that agree and compute the median ratio, by experiment and quantity."""
    groups = compared.groupby(level=["experiment", "quantity"], sort=False)
    return pd.DataFrame(
        {
            "cells": groups.size(),
            "agree": groups["agrees"].sum(),
            "median ratio": groups["ratio"].median(),
        }
    )


def _why_nothing(results: Mapping[str, xr.Dataset], folder: Path) -> str:
    if not (folder / _VERDICTS).exists():
        return NONE_KEPT
    return next(filter(None, map(why_not_run, results.values())), "no cell was run in both")
