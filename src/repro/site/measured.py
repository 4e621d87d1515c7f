"""Provenance of results: when and where they were measured, and what is missing."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import xarray as xr

from repro.paths import RESULTS
from repro.results.store import read_result, read_sweeps, why_not_run
from repro.site.pages import table, write_page
from repro.studies.datasets import read_evidence


@cache
def datasets() -> dict[str, xr.Dataset]:
    """Read all datasets of the pipeline once; a missing one holds the reason."""
    others = {name: read_result(name) for name in ("sensitivity", "decoding", "operators")}
    return read_evidence() | read_sweeps() | others


def where() -> list[str]:
    """Return machines and profiles with the dates of their measurements, a line each."""
    seen: dict[str, list[str]] = {}
    for dataset in datasets().values():
        for part in _provenance(dataset):
            machine = part["machine"]
            text = (
                f"measured on {machine['processor']}, {machine['cores']} cores, "
                f"{machine['memory_gib']:.0f} GiB, profile {dataset.attrs.get('profile', '?')}"
            )
            seen.setdefault(text, []).append(str(part["time"])[:10])
    return [
        f"{text}, {' to '.join(dict.fromkeys((min(days), max(days))))} "
        "([provenance](provenance.md))"
        for text, days in seen.items()
    ]


def missing() -> list[str]:
    """Return the names of missing results, a line per reason."""
    reasons: dict[str, list[str]] = {}
    for name, dataset in datasets().items():
        if reason := why_not_run(dataset):
            reasons.setdefault(reason, []).append(name)
    return [f"not measured: {', '.join(names)} ({why})" for why, names in reasons.items()]


def write_provenance(pages: Path) -> None:
    """Write `provenance.md`: time, machine, commit and versions of every dataset."""
    rows = []
    for result, dataset in datasets().items():
        for part in _provenance(dataset):
            versions = ", ".join(f"{name} {number}" for name, number in part["versions"].items())
            machine = part["machine"]
            rows.append(
                (
                    result,
                    dataset.attrs.get("profile", ""),
                    str(part["time"]),
                    str(part["commit"])[:12],
                    f"{machine['processor']}, {machine['cores']} cores, {machine['kernel']}",
                    versions,
                )
            )
    header = ("result", "profile", "time", "commit", "machine", "versions")
    introduction = (
        "Every dataset in `results/` contains this provenance (`attrs['provenance']`) and its "
        "requests (`attrs['requests']`)."
    )
    blocks = [introduction, table(header, rows) if rows else "Nothing was measured yet."]
    blocks += [f"- {line}" for line in missing()]
    scores = list(_validation())
    if scores:
        columns = ("published measurements", "rows", "median error", "90 % within", "bias")
        blocks += [
            "## Accuracy of the predictions",
            "Error of the performance model on published measurements, see [its validation]"
            "(docs/explanation/model_validation.md).",
            table(columns, scores),
        ]
    write_page(pages / "provenance.md", "Provenance", *blocks)


def _validation() -> Iterator[tuple[str, ...]]:
    for path in sorted((RESULTS / "validation").glob("*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            yield (
                row["set"],
                str(row["n"]),
                f"{row['median_pct']:.1f} %",
                f"{row['p90_pct']:.1f} %",
                f"{row['bias_pct']:+.1f} %",
            )


def _provenance(dataset: xr.Dataset) -> list[dict[str, dict[str, str]]]:
    parts: list[dict[str, dict[str, str]]] = json.loads(dataset.attrs.get("provenance", "[]"))
    return parts if dataset.data_vars else []
