"""Columns of tables of measurements: read, renamed, filled and checked in one pass."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from repro.errors import ReproError
from repro.predict.workload import Array

FIX = "correct this column or cell"
"""Fix of a table whose error names none."""


@dataclass(frozen=True)
class Kind:
    """Cells of one kind: numbers that are `allowed`, texts of `choices`, or any text.

    A choice becomes the value of its text in lower case. Text in a cell of numbers is an error, or
    counts as blank if `or_blank`.
    """

    must_be: str
    allowed: Callable[[Array], Array] | None = None
    choices: Mapping[str, Any] | None = None
    or_blank: bool = False


def number(least: float = -np.inf, or_blank: bool = False) -> Kind:
    """Describe numbers, which may have a lower limit."""
    must_be = "a number" if np.isinf(least) else f"a number of {least:g} or more"
    return Kind(must_be, allowed=lambda found: found >= least, or_blank=or_blank)


def choice(names: Iterable[str], **also: int) -> Kind:
    """Describe names that stand for their position, and others with positions of their own."""
    values = {name: at for at, name in enumerate(names)} | also
    return Kind(f"one of {', '.join(values)}", choices=values)


TEXT = Kind("text")
NUMBER = number(0)
POSITIVE = Kind("a positive number", allowed=lambda found: found > 0)
YES_NO = Kind(
    "yes or no",
    choices=dict.fromkeys(("yes", "true", "1", "1.0"), 1.0)
    | dict.fromkeys(("no", "false", "0", "0.0"), 0.0),
)
NEEDED = object()


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    default
        Value of blank cells and of a missing column; `NEEDED` refuses both.
    aliases
        Other names of the column, compared without case and marks. None: only this exact name.
    """

    name: str
    kind: Kind = NUMBER
    default: Any = NEEDED
    aliases: str | None = None


def same_kind(names: str, kind: Kind = NUMBER, default: Any = NEEDED) -> tuple[Column, ...]:
    """Describe columns that differ only in their names."""
    return tuple(Column(name, kind, default) for name in names.split())


def renamed(table: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Return a table whose columns have their names here; the first alias of several counts."""
    plain = {re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"): name for name in table.columns}
    own = {}
    for column in columns:
        if column.aliases is not None:
            names = (column.name, *column.aliases.split())
            own[next((plain[name] for name in names if name in plain), "")] = column.name
    return table.rename(columns=own)


def read(table: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Read columns of a table from a CSV, with defaults for blank cells and missing columns.

    The index counts the file's rows from 0.

    Raises
    ------
    ReproError
        A column is missing or a cell is not of its kind; the message names line and value.
    """
    found = renamed(table, columns)
    needed = [column.name for column in columns if column.default is NEEDED]
    if missing := [name for name in needed if name not in found.columns]:
        raise ReproError(
            f"no column {missing[0]!r}; must have {', '.join(needed)}; fix: add the column"
        )
    values = {column.name: _values(found, column) for column in columns}
    return pd.DataFrame(values, index=table.index, copy=False).infer_objects()


def _values(table: pd.DataFrame, column: Column) -> Array:
    kind, default, needed = column.kind, column.default, column.default is NEEDED
    if kind.choices and not needed:
        default = kind.choices.get(default, np.nan)
    if column.name not in table.columns:
        return np.full(len(table), default, float if kind.allowed else object)
    cells = table[column.name]
    blank = cells.isna().to_numpy()
    if kind.allowed:
        found = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=float)
        good = kind.allowed(found) & ~np.isinf(found)
        blank = blank | (kind.or_blank & np.isnan(found))
    else:
        # Long tables have few different texts. Blank cells have code -1.
        codes, texts = pd.factorize(cells)
        values: list[Any] = [str(text) for text in texts]
        if kind.choices:
            values = [kind.choices.get(text.lower()) for text in values]
        found = np.array([*values, None], dtype=object)[codes]
        good = pd.notna(found)
    refuse(table, column.name, ~good & (needed | ~blank), kind.must_be, optional=not needed)
    return found if needed else np.where(blank, default, found)


def unknown(cells: pd.Series, find: Callable[[str], Any]) -> pd.Series:
    """Return why `find` refuses the text of each cell; an empty text where it does not."""
    reasons = {}
    for text in cells.dropna().unique():
        try:
            find(str(text))
        except ReproError as error:
            reasons[text] = str(error)
    return cells.map(reasons).fillna("").astype(object)


def refuse(
    table: pd.DataFrame, name: str, wrong: Any, must_be: str, optional: bool = False
) -> None:
    """Raise an error that names the first wrong cell of a column."""
    wrong = np.asarray(wrong)
    if wrong.any():
        row = int(wrong.argmax())
        line, value = table.index[row] + 2, table[name].tolist()[row]
        fix = "correct it or leave it blank" if optional else "correct it"
        raise ReproError(f"line {line}: {name} is {value!r}; must be {must_be}; fix: {fix}")
