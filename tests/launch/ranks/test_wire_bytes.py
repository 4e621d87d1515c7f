"""What collectives put on emulated links is what their algorithms have to move, and no more."""

import pytest
import xarray as xr

from repro.catalog.studies.collectives import COLLECTIVES
from repro.catalog.systems.topology import Level, Topology
from repro.collectives.records import CollectiveSweep, Timing
from repro.collectives.traffic import received_bytes
from repro.launch.ranks.pool import open_pool
from repro.launch.request import PoolSpec, Request
from repro.results.collectives import sweep_dataset, wire_share
from repro.results.outcome import Outcome
from repro.results.schema import placed
from repro.testbed.links import FRAMING

pytestmark = [pytest.mark.testbed, pytest.mark.slow]

_KIB, _MIB = 1 << 10, 1 << 20
_TOPOLOGY = Topology(
    levels=(
        Level(name="node", members=2, link_gbps=1),
        Level(name="fabric", members=4, link_gbps=1),
    )
)
_RATES = {"node": 1.0, "fabric": 1.0}
_RANKS = (2, 4, 8)
_SMALL = CollectiveSweep(
    collectives=COLLECTIVES,
    sizes_bytes=(256 * _KIB, _MIB),
    layouts=("world",),
    ranks_per_node=2,
    dtype="fp32",
    warmup=1,
    repeats=2,
    most_repeats=2,
    longest_call_s=10.0,
)
# Its segments are of a largest size, so that a large reduction is another algorithm.
_LARGE = CollectiveSweep(
    collectives=("reduce", "all_reduce"),
    sizes_bytes=(16 * _MIB,),
    layouts=("world",),
    ranks_per_node=2,
    dtype="fp32",
    warmup=1,
    repeats=2,
    most_repeats=2,
    longest_call_s=10.0,
)
_ASKED = {"small": _SMALL, "large": _LARGE}
# Of 1 MiB, of 16 MiB: few messages about many bytes.
_MOST_SHARE = {"small": 1.015, "large": 1.004}


# A machine that stalls has TCP send again what had arrived, and acknowledge more often: that only
# adds bytes, so that what is least of some attempts is the algorithm's.
_MOST_ATTEMPTS = 8
_SWEPT = [(name, ranks) for name in _ASKED for ranks in _RANKS]
_Attempts = list[Outcome]
_Case = tuple[Timing, ...]
"""One collective, place and size, on all ranks."""


@pytest.fixture(scope="module")
def attempts() -> dict[tuple[str, int], _Attempts]:
    """All sweeps of one session, each as often as it takes until no case was always disturbed."""
    found: dict[tuple[str, int], _Attempts] = {key: [] for key in _SWEPT}
    with open_pool(PoolSpec(_TOPOLOGY, max(_RANKS), cores=None)) as session:
        for (name, ranks), made in found.items():
            while len(made) < _MOST_ATTEMPTS and not (made and _undisturbed(name, ranks, made)):
                outcome = session.run(Request({}, _ASKED[name], ranks, _RATES))
                assert isinstance(outcome, Outcome)
                made.append(outcome)
    return found


def _undisturbed(name: str, ranks: int, made: _Attempts) -> bool:
    all_cases = _cases(made).values()
    least = _largest_share(name, ranks, made).min("attempt")
    return (
        all(any(map(_receives_no_more, attempts)) for attempts in all_cases)
        and all(any(map(_arrives, attempts)) for attempts in all_cases)
        and bool((least < _MOST_SHARE[name]).all())
    )


def _cases(made: _Attempts) -> dict[tuple[str, bool, int], list[_Case]]:
    """Attempts at each collective, in or out of place, of a size."""
    cases: dict[tuple[str, bool, int], list[_Case]] = {}
    for outcome in made:
        for case in zip(*(record.measurements for record in outcome.sweeps), strict=True):
            key = case[0].collective, case[0].in_place, case[0].size_bytes
            cases.setdefault(key, []).append(case)
    return cases


def _receives_no_more(case: _Case) -> bool:
    """A rank receives its data in full frames with their headers; and acknowledgements, gloo's
    words about its messages and barriers, which grow with the number of partners."""
    return all(
        found.received_bytes < FRAMING * _needed(found, rank, len(case)) + 2000 * len(case)
        for rank, found in enumerate(case)
    )


def _needed(found: Timing, rank: int, ranks: int) -> float:
    return received_bytes(found.collective, found.size_bytes, rank, ranks)


def _arrives(case: _Case) -> bool:
    """What is sent is received. Where many send to one, as the parts of a reduction to its root,
    queues overflow now and then, and what was dropped is sent again."""
    sent, received = (
        sum(getattr(found, f"{way}_bytes") for found in case) for way in ("sent", "received")
    )
    return 0.999 * received < sent < 1.005 * received


def _largest_share(name: str, ranks: int, made: _Attempts) -> xr.DataArray:
    """Bytes of all ranks over what the algorithms need, of the largest messages, by attempt."""
    datasets = [
        placed(
            sweep_dataset(_ASKED[name], outcome),
            {"source": "testbed", "protocol": "rdma", "gpus": ranks},
        )
        for outcome in made
    ]
    return xr.concat(
        [wire_share(dataset).isel(size_bytes=-1) for dataset in datasets], dim="attempt"
    )


@pytest.mark.parametrize(("name", "ranks"), _SWEPT)
def test_every_rank_receives_what_the_algorithm_moves(
    attempts: dict[tuple[str, int], _Attempts], name: str, ranks: int
) -> None:
    cases = _cases(attempts[name, ranks])
    # Seven collectives of two sizes, all but two of them in place too; two of one size.
    assert len(cases) == (2 * 12 if name == "small" else 4)
    for key, made in cases.items():
        for case in made:
            for rank, found in enumerate(case):
                assert _needed(found, rank, ranks) < found.received_bytes, (key, rank)
        assert any(map(_receives_no_more, made)), (key, made)


@pytest.mark.parametrize(("name", "ranks"), _SWEPT)
def test_what_is_sent_is_received(
    attempts: dict[tuple[str, int], _Attempts], name: str, ranks: int
) -> None:
    for key, made in _cases(attempts[name, ranks]).items():
        assert any(map(_arrives, made)), (key, made)


@pytest.mark.parametrize(("name", "ranks"), _SWEPT)
def test_large_messages_show_the_algorithm(
    attempts: dict[tuple[str, int], _Attempts], name: str, ranks: int
) -> None:
    shares = _largest_share(name, ranks, attempts[name, ranks])
    assert (shares.min("attempt") > 1).all()
    assert (shares.min("attempt") < _MOST_SHARE[name]).all(), shares
