"""Shapes and sharding plans of small deep learning recommendation models (DLRM).

Dense layers are replicated, and embedding tables are sharded across ranks (Naumov et al., "Deep
Learning Recommendation Model for Personalization and Recommendation Systems", 2019).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import PositiveInt

from repro.catalog.reading import Entry


class DlrmShape(Entry):
    """Dense layers and inputs of a recommendation model.

    Attributes
    ----------
    dense
        Numerical (non-categorical) features of a sample.
    width
        Columns of each embedding table.
    bottom, top
        Hidden widths of the layers below and above the interaction.
    batch
        Samples per rank.
    """

    dense: PositiveInt
    width: PositiveInt
    bottom: tuple[PositiveInt, ...]
    top: tuple[PositiveInt, ...]
    batch: PositiveInt


@dataclass(frozen=True)
class Table:
    """Embedding table: its number of rows, and how many of them each sample sums."""

    rows: int
    pooling: int


@dataclass(frozen=True)
class Shard:
    """Part of a table on one rank: half-open ranges of rows and columns."""

    table: int
    rank: int
    rows: tuple[int, int]
    columns: tuple[int, int]


Assign = Callable[[Sequence[Table], int, int], list[Shard]]


def random_tables(
    seed: int, count: tuple[int, int], rows: tuple[int, int], pooling: tuple[int, int]
) -> tuple[Table, ...]:
    """Draw tables: their number is uniform, their rows and pooling are log-uniform."""
    draw = np.random.default_rng(seed)
    number = int(draw.integers(count[0], count[1] + 1))
    sizes, sums = (
        np.exp(draw.uniform(np.log(least), np.log(most), number)) for least, most in (rows, pooling)
    )
    return tuple(Table(int(a), max(1, round(b))) for a, b in zip(sizes, sums, strict=True))


def plan_shards(plan: str, tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
    """Return the shards of a plan of `PLANS`, sorted by rank, then by table."""
    shards = PLANS[plan](tables, width, ranks)
    return sorted(shards, key=lambda shard: (shard.rank, shard.table))


def _unsplit(table: int, rank: int, tables: Sequence[Table], width: int) -> Shard:
    return Shard(table, rank, (0, tables[table].rows), (0, width))


def _round_robin(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
    return [_unsplit(number, number % ranks, tables, width) for number in range(len(tables))]


def _by_lookups(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
    """Assign each table, the one with most lookups first, to the rank with fewest lookups."""
    loads, shards = [0] * ranks, []
    for number in sorted(range(len(tables)), key=lambda table: -tables[table].pooling):
        rank = loads.index(min(loads))
        loads[rank] += tables[number].pooling
        shards.append(_unsplit(number, rank, tables, width))
    return shards


def _split(table: Shard, ranks: int, by: str) -> list[Shard]:
    """Split a table evenly across all ranks, by rows or by columns."""
    _, size = table.rows if by == "rows" else table.columns
    ends = [(size * rank // ranks, size * (rank + 1) // ranks) for rank in range(ranks)]
    if by == "rows":
        return [replace(table, rank=rank, rows=ends[rank]) for rank in range(ranks)]
    return [replace(table, rank=rank, columns=ends[rank]) for rank in range(ranks)]


def _split_all(by: str) -> Assign:
    def assign(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
        unsplit = (_unsplit(number, 0, tables, width) for number in range(len(tables)))
        return [shard for table in unsplit for shard in _split(table, ranks, by)]

    return assign


def _split_heaviest(by: str) -> Assign:
    """Split the table with most lookups; assign the others by lookups."""

    def assign(tables: Sequence[Table], width: int, ranks: int) -> list[Shard]:
        heaviest = max(range(len(tables)), key=lambda number: tables[number].pooling)
        # Every rank holds an equal part of it, so it does not affect where the others go.
        others = [
            replace(table, pooling=0) if number == heaviest else table
            for number, table in enumerate(tables)
        ]
        rest = [shard for shard in _by_lookups(others, width, ranks) if shard.table != heaviest]
        return [*_split(_unsplit(heaviest, 0, tables, width), ranks, by), *rest]

    return assign


PLANS: Mapping[str, Assign] = {
    "table-wise, in turn": _round_robin,
    "table-wise, by lookups": _by_lookups,
    "row-wise": _split_all("rows"),
    "column-wise": _split_all("columns"),
    "heaviest row-wise": _split_heaviest("rows"),
    "heaviest column-wise": _split_heaviest("columns"),
}
