"""What collectives put on emulated links is what their algorithms have to move, and no more."""

import pytest
import xarray as xr

from repro.catalog.studies.collectives import COLLECTIVES
from repro.catalog.systems.topology import Level, Topology
from repro.collectives.records import CollectiveSweep, Timing
from repro.collectives.traffic import received_bytes
from repro.launch.messages import Order, Site
from repro.launch.ranks.sites import open_site
from repro.results.collectives import sweep_dataset, wire_share
from repro.results.outcome import Outcome
from repro.testbed.links import FRAMING

pytestmark = [pytest.mark.testbed, pytest.mark.slow]

_KIB, _MIB = 1 << 10, 1 << 20
_TOPOLOGY = Topology(
    levels=(
        Level(name="node", members=2, link_gbps=1),
        Level(name="fabric", members=4, link_gbps=1),
    )
)
_RATES = {"node": 1.0, "fabric": 0.5}
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


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, int], Outcome]:
    """All sweeps of one session."""
    found = {}
    with open_site(Site(_TOPOLOGY, max(_RANKS), cores=None)) as session:
        for ranks in _RANKS:
            for name, asked in _ASKED.items():
                for _ in range(_ATTEMPTS):
                    outcome = session.run(Order(asked, ranks, _RATES))
                    assert isinstance(outcome, Outcome)
                    found[name, ranks] = outcome
                    if _as_theory_says(name, ranks, outcome):
                        break
    return found


def _as_theory_says(name: str, ranks: int, outcome: Outcome) -> bool:
    each = all(
        found.received_bytes < _most(found, rank, ranks)
        for case in _cases(outcome)
        for rank, found in enumerate(case)
    )
    shares = _largest_share(name, ranks, outcome)
    arrived = all(map(_arrives, _cases(outcome)))
    return each and arrived and bool((shares < _MOST_SHARE[name]).all())


def _arrives(case: tuple[Timing, ...]) -> bool:
    """What is sent is received. Where many send to one, as the parts of a reduction to its root,
    queues overflow now and then, and what was dropped is sent again."""
    sent, received = (
        sum(getattr(found, f"{way}_bytes") for found in case) for way in ("sent", "received")
    )
    return 0.999 * received < sent < 1.005 * received


def _largest_share(name: str, ranks: int, outcome: Outcome) -> xr.DataArray:
    """Bytes of all ranks over what the algorithms need, of the largest messages."""
    dataset = sweep_dataset("testbed", "rdma", ranks, _ASKED[name], outcome)
    return wire_share(dataset).isel(size_bytes=-1)


def _most(found: Timing, rank: int, ranks: int) -> float:
    """What a rank may receive: its data in full frames with their headers; and acknowledgements,
    gloo's words about its messages and barriers, which grow with the number of partners."""
    needed = received_bytes(found.collective, found.size_bytes, rank, ranks)
    return FRAMING * needed + 2000 * ranks


# A machine that stalls has TCP send again what had arrived: then it is measured again.
_ATTEMPTS = 4
_SWEPT = [(name, ranks) for name in _ASKED for ranks in _RANKS]


def _cases(outcome: Outcome) -> list[tuple[Timing, ...]]:
    """Every collective, place and size, on all ranks."""
    return list(zip(*(record.measurements for record in outcome.sweeps), strict=True))


@pytest.mark.parametrize(("name", "ranks"), _SWEPT)
def test_every_rank_receives_what_the_algorithm_moves(
    outcomes: dict[tuple[str, int], Outcome], name: str, ranks: int
) -> None:
    cases = _cases(outcomes[name, ranks])
    # Seven collectives of two sizes, all but two of them in place too; two of one size.
    assert len(cases) == (2 * 12 if name == "small" else 4)
    for case in cases:
        for rank, found in enumerate(case):
            needed = received_bytes(found.collective, found.size_bytes, rank, ranks)
            most = _most(found, rank, ranks)
            assert needed < found.received_bytes < most, (found.collective, found.in_place, rank)


@pytest.mark.parametrize(("name", "ranks"), _SWEPT)
def test_what_is_sent_is_received(
    outcomes: dict[tuple[str, int], Outcome], name: str, ranks: int
) -> None:
    for case in _cases(outcomes[name, ranks]):
        assert _arrives(case), case


@pytest.mark.parametrize(("name", "ranks"), _SWEPT)
def test_large_messages_show_the_algorithm(
    outcomes: dict[tuple[str, int], Outcome], name: str, ranks: int
) -> None:
    share = _largest_share(name, ranks, outcomes[name, ranks])
    assert share.notnull().all()
    assert (share > 1).all()
    assert (share < _MOST_SHARE[name]).all()
