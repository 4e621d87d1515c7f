"""What tests of training share."""

from collections.abc import Iterator

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Rank processes that all tests use in turn."""
    ranks = RankPool()
    yield ranks
    ranks.close()
