"""When and where results were measured, and what was not."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import xarray as xr

from repro.paths import RESULTS
from repro.results.store import read_evidence, read_result, read_sweeps, why_not_run
from repro.site.pages import table, write_page


@cache
def datasets() -> dict[str, xr.Dataset]:
    """All that the pipeline measures, read once; what is missing says so."""
    others = {name: read_result(name) for name in ("sensitivity", "decoding")}
    return read_evidence() | read_sweeps() | others


def where() -> list[str]:
    """Dates, machines and profiles of all that was measured, a line each."""
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
    """What was not measured and why, a line per reason."""
    reasons: dict[str, list[str]] = {}
    for name, dataset in datasets().items():
        if reason := why_not_run(dataset):
            reasons.setdefault(reason, []).append(name)
    return [f"not measured: {', '.join(names)} ({why})" for why, names in reasons.items()]


def write_provenance(stage: Path) -> None:
    """Write `provenance.md`: when, where, by what code and with what versions."""
    rows = []
    for name, dataset in datasets().items():
        for part in _provenance(dataset):
            versions = ", ".join(f"{what} {which}" for what, which in part["versions"].items())
            machine = part["machine"]
            rows.append(
                (
                    name,
                    dataset.attrs.get("profile", ""),
                    str(part["time"]),
                    str(part["commit"])[:12],
                    f"{machine['processor']}, {machine['cores']} cores, {machine['kernel']}",
                    versions,
                )
            )
    header = ("result", "profile", "time", "commit", "machine", "versions")
    words = (
        "Every dataset in `results/` carries this, with all parameters and numbers that it was "
        "asked for (`attrs['provenance']`, `attrs['asked']`)."
    )
    blocks = [words, table(header, rows) if rows else "Nothing was measured yet."]
    blocks += [f"- {line}" for line in missing()]
    scores = list(_validation())
    if scores:
        columns = ("published measurements", "rows", "median error", "90 % within", "bias")
        blocks += [
            "## How good the predictions are",
            "Error of the performance model on measurements that others published, "
            "see [the model](docs/model.md).",
            table(columns, scores),
        ]
    write_page(stage / "provenance.md", "Provenance", *blocks)


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
