"""The definitions of bandwidths, on a published table of nccl-tests."""

import pandas as pd
import pytest

from repro.catalog.studies.collectives import COLLECTIVES
from repro.collectives.definitions import algbw_GBps, bus_factor, busbw_GBps
from repro.errors import ReproError
from repro.paths import PUBLISHED


@pytest.mark.parametrize("side", ["inter", "intra"])
def test_published_bus_bandwidths_are_those_of_the_definition(side: str) -> None:
    """All 24 cells of the GPT-350M report's table, printed with four digits or more."""
    table = pd.read_csv(PUBLISHED / "nccl_bigred200.csv")
    computed = busbw_GBps(
        "all_reduce", table[f"{side}_n"], table.size_bytes, 1e-6 * table[f"{side}_time_us"]
    )
    assert len(table) == 12
    assert computed == pytest.approx(table[f"{side}_busbw_GBps_reported"].to_numpy(), rel=5e-4)


def test_a_ring_of_two_sends_what_it_has_and_algorithm_bandwidth_knows_no_ranks() -> None:
    assert {name: float(bus_factor(name, 2)) for name in COLLECTIVES} == {
        **{"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5},
        **{"broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0},
    }
    assert float(algbw_GBps(3e9, 2)) == 1.5


def test_an_unknown_collective_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ReproError, match=r"unknown collective 'gather'; choose from: all_reduce"):
        busbw_GBps("gather", 2, 8, 1)
