"""Random sets of embedding tables."""

from repro.catalog.models.dlrm import random_tables


def test_a_set_of_tables_is_the_same_each_time() -> None:
    ends = ((6, 10), (1000, 5000), (1, 48))
    drawn = random_tables(3, *ends)
    assert drawn == random_tables(3, *ends) != random_tables(4, *ends)
    assert 6 <= len(drawn) <= 10
    assert all(1000 <= one.rows <= 5000 and 1 <= one.pooling <= 48 for one in drawn)
