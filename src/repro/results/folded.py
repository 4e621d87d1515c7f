"""Collapsed HTML view of a dataset in a notebook, with its provenance as a table."""

import html
import json
from collections.abc import Mapping

import xarray as xr
import yaml

_SECTIONS = ("attrs", "coords", "data_vars", "indexes")


def folded_html(dataset: xr.Dataset) -> str:
    """Return the view of a dataset by xarray, sections collapsed, with readable JSON attributes."""
    structured = {
        name: json.loads(value)
        for name, value in dataset.attrs.items()
        if isinstance(value, str) and value[:1] in ("{", "[")
    }
    options = {f"display_expand_{section}": False for section in _SECTIONS}
    with xr.set_options(**options):  # type: ignore[no-untyped-call]
        view = dataset.drop_attrs(deep=False).assign_attrs(
            {name: value for name, value in dataset.attrs.items() if name not in structured}
        )
        shown: str = view._repr_html_()
    parts = structured.pop("provenance", [])
    # Larger than the rest of the view; it stays in the attributes.
    structured.pop("requests", None)
    tables = "".join(_table(_readable(part)) for part in parts)
    others = _table({name: _folded(value) for name, value in structured.items() if value})
    return f"{shown}<details open><summary>Provenance</summary>{tables}</details>{others}"


def _readable(part: Mapping[str, object]) -> dict[str, str]:
    """Return one part of a provenance: time, sources, software, machine, collapsed parameters."""
    return {
        name: _folded(value)
        if name == "parameters"
        else html.escape(
            ", ".join(f"{key} {text}" for key, text in value.items())
            if isinstance(value, Mapping)
            else str(value)
        )
        for name, value in part.items()
    }


def _folded(value: object) -> str:
    text = html.escape(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
    return f"<details><summary>show</summary><pre>{text}</pre></details>"


def _table(rows: Mapping[str, str]) -> str:
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{cell}</td></tr>'
        for name, cell in rows.items()
    )
    return f"<table>{cells}</table>" if rows else ""
