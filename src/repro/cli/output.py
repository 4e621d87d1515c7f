"""Answers of commands as JSON (docs/reference/json_tables.md)."""

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas as pd


def print_json(answer: Any) -> None:
    """Print an answer of plain data and numbers of NumPy."""
    typer.echo(json.dumps(answer, indent=1, allow_nan=False, default=lambda value: value.item()))


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a table as plain data; missing values are None.

    Rates that tables call `GBps`, as nccl-tests does, have the package's unit `gbytes_per_s`.
    """
    named = table.rename(columns=lambda name: str(name).replace("GBps", "gbytes_per_s"))
    plain = named.astype(object)
    return [
        {str(name): value for name, value in row.items()}
        for row in plain.where(plain.notna(), None).to_dict("records")
    ]


def print_table(table: "pd.DataFrame", text: str, as_json: bool) -> None:
    """Print a table as text, or as JSON with one object per row."""
    if as_json:
        print_json(records(table))
    else:
        typer.echo(text)
