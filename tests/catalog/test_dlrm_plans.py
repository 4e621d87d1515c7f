"""Plans of sharded tables: every number of every table is on one rank."""

import numpy as np
import pytest

from repro.catalog.models.dlrm import PLANS, Table, plan_shards, random_tables

_TABLES = (Table(100, 3), Table(7, 40), Table(50, 1), Table(31, 12))
_WIDTH = 12


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_number_is_somewhere_once(plan: str, ranks: int) -> None:
    held = [np.zeros((table.rows, _WIDTH), dtype=int) for table in _TABLES]
    for shard in plan_shards(plan, _TABLES, _WIDTH, ranks):
        assert 0 <= shard.rank < ranks
        held[shard.table][slice(*shard.rows), slice(*shard.columns)] += 1
    for part in held:
        assert (part == 1).all()


def test_lookups_go_where_fewest_are() -> None:
    shards = plan_shards("table-wise, by lookups", _TABLES, _WIDTH, 2)
    load = [
        sum(_TABLES[one.table].pooling for one in shards if one.rank == rank) for rank in (0, 1)
    ]
    # 40 on one rank; 12, 3 and 1 on the other.
    assert sorted(load) == [16, 40]


def test_a_set_of_tables_is_the_same_each_time() -> None:
    ends = ((6, 10), (1000, 5000), (1, 48))
    drawn = random_tables(3, *ends)
    assert drawn == random_tables(3, *ends) != random_tables(4, *ends)
    assert 6 <= len(drawn) <= 10
    assert all(1000 <= one.rows <= 5000 and 1 <= one.pooling <= 48 for one in drawn)
