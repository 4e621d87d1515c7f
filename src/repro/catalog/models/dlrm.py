"""Small recommendation models (DLRM): their shapes, and how tables are spread over ranks.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems"
(2019): replicas share dense layers, embedding tables are divided among ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import PositiveInt

from repro.catalog.reading import Entry


class DlrmShape(Entry):
    """Dense layers, and what samples have.

    Attributes
    ----------
    dense
        Numbers of a sample that are no categories.
    width
        Of an embedding.
    bottom, top
        Hidden widths of the layers below and above the interaction.
    batch
        Samples of a rank.
    """

    dense: PositiveInt
    width: PositiveInt
    bottom: tuple[PositiveInt, ...]
    top: tuple[PositiveInt, ...]
    batch: PositiveInt


@dataclass(frozen=True)
class Table:
    """An embedding table: its rows, and how many of them a sample sums up."""

    rows: int
    pooling: int


@dataclass(frozen=True)
class Shard:
    """A part of a table on a rank: rows and columns from the first up to the second."""

    table: int
    rank: int
    rows: tuple[int, int]
    columns: tuple[int, int]


Assign = Callable[[Sequence[Table], int, int], list[Shard]]


def random_tables(
    seed: int, count: tuple[int, int], rows: tuple[int, int], pooling: tuple[int, int]
) -> tuple[Table, ...]:
    """Tables whose number is uniform, and whose rows and pooling have uniform logarithms."""
    draw = np.random.default_rng(seed)
    number = int(draw.integers(count[0], count[1] + 1))
    sizes, sums = (
        np.exp(draw.uniform(np.log(least), np.log(most), number)) for least, most in (rows, pooling)
    )
    return tuple(Table(int(a), max(1, round(b))) for a, b in zip(sizes, sums, strict=True))


def plan_shards(plan: str, tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
    """The shards of a plan of `PLANS`, by rank, then by table."""
    shards = PLANS[plan](tables, width, ranks)
    return sorted(shards, key=lambda one: (one.rank, one.table))


def _whole(table: int, rank: int, tables: Sequence[Table], width: int) -> Shard:
    return Shard(table, rank, (0, tables[table].rows), (0, width))


def _in_turn(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
    return [_whole(number, number % ranks, tables, width) for number in range(len(tables))]


def _by_lookups(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
    """The table with most lookups first, each to the rank that has fewest."""
    loads, shards = [0] * ranks, []
    for number in sorted(range(len(tables)), key=lambda one: -tables[one].pooling):
        rank = loads.index(min(loads))
        loads[rank] += tables[number].pooling
        shards.append(_whole(number, rank, tables, width))
    return shards


def _pieces(whole: Shard, ranks: int, by: str) -> list[Shard]:
    """A table divided evenly among all ranks, by rows or by columns."""
    _, size = whole.rows if by == "rows" else whole.columns
    ends = [(size * rank // ranks, size * (rank + 1) // ranks) for rank in range(ranks)]
    if by == "rows":
        return [replace(whole, rank=rank, rows=ends[rank]) for rank in range(ranks)]
    return [replace(whole, rank=rank, columns=ends[rank]) for rank in range(ranks)]


def _all_divided(by: str) -> Assign:
    def assign(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
        whole = (_whole(number, 0, tables, width) for number in range(len(tables)))
        return [piece for one in whole for piece in _pieces(one, ranks, by)]

    return assign


def _heaviest_divided(by: str) -> Assign:
    """The table with most lookups is divided, the others go where fewest are."""

    def assign(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
        heaviest = max(range(len(tables)), key=lambda number: tables[number].pooling)
        # All ranks have as much of it: the others go where they would without it.
        others = [
            replace(table, pooling=0) if number == heaviest else table
            for number, table in enumerate(tables)
        ]
        rest = [one for one in _by_lookups(others, width, ranks) if one.table != heaviest]
        return [*_pieces(_whole(heaviest, 0, tables, width), ranks, by), *rest]

    return assign


PLANS: Mapping[str, Assign] = {
    "table-wise, in turn": _in_turn,
    "table-wise, by lookups": _by_lookups,
    "row-wise": _all_divided("rows"),
    "column-wise": _all_divided("columns"),
    "heaviest row-wise": _heaviest_divided("rows"),
    "heaviest column-wise": _heaviest_divided("columns"),
}
