"""What schemes move and hold: their papers' volumes, and groups that do not divide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import parameters
from repro.catalog.parallel.partitions import (
    Partition,
    Unit,
    gpt_units,
    held_bytes,
    iteration_calls,
    quantised_bytes,
    shard_sizes,
)
from repro.catalog.studies.partitions import read_partition_study
from repro.catalog.systems.clusters import cluster
from repro.collectives.levels import sent_by_level
from repro.errors import ReproError

_SHAPE = Shape(
    layers=4, hidden_size=512, attention_heads=4, sequence_length=64, vocabulary_size=4096
)
_SCHEMES = read_partition_study().schemes
_FRONTIER = cluster("frontier").topology
_HALF = 2


def _sent(name: str, ranks: int, micro_batches: int = 1) -> dict[str, float]:
    """Bytes that a rank sends in an iteration, by the level of links that they cross."""
    partition = _SCHEMES[name].on(_FRONTIER, ranks)
    found: dict[str, float] = {}
    for calls in iteration_calls(partition, gpt_units(_SHAPE), micro_batches, _HALF, _HALF):
        one = calls.collective
        sent = sent_by_level(one.operation, one.members, one.size_bytes, _FRONTIER)
        for level, size in sent.items():
            found[level] = found.get(level, 0.0) + calls.calls * size
    return found


def test_units_hold_all_parameters() -> None:
    held = sum(unit.count * unit.elements for unit in gpt_units(_SHAPE))
    assert held == parameters("gpt", _SHAPE)


def test_zero_moves_what_its_paper_says() -> None:
    # Rajbhandari et al., SC 2020, section 7: 2 psi as much as replicas' all-reduce, and 3 psi.
    model = _HALF * parameters("gpt", _SHAPE) * 63 / 64
    around = gpt_units(_SHAPE)[1].elements * _HALF * 63 / 64
    assert sum(_sent("zero-1", 64).values()) == pytest.approx(2 * model, rel=1e-3)
    assert sum(_sent("zero-2", 64).values()) == pytest.approx(2 * model, rel=1e-3)
    # What stands around the layers is gathered once only.
    assert sum(_sent("zero-3", 64).values()) == pytest.approx(3 * model - around, rel=1e-3)


def test_only_zero_2_and_3_pay_for_every_micro_batch() -> None:
    growth = {
        name: sum(_sent(name, 64, 4).values()) / sum(_sent(name, 64).values())
        for name in ("zero-1", "zero-2", "zero-3")
    }
    assert growth["zero-1"] == pytest.approx(1, rel=1e-3)
    assert growth["zero-2"] == pytest.approx((4 + 1) / 2, rel=1e-3)
    assert growth["zero-3"] == pytest.approx(4, rel=1e-3)


def test_second_copies_take_the_backward_gathers_off_the_fabric() -> None:
    # Wang et al., 2023, section 3: 3 M between nodes become 2 M with hpZ.
    layers = gpt_units(_SHAPE)[0]
    gathered = _HALF * layers.count * layers.elements
    spared = _sent("zero-3", 64)["fabric"] - _sent("hpz", 64)["fabric"]
    # Of a ring, one rank of eight sends between nodes.
    assert spared == pytest.approx(gathered * 63 / 64 / 8, rel=1e-3)
    # And 0.75 M with 8 and 4 bits for 16: M/2 and M/4, with their scales.
    whole = _HALF * parameters("gpt", _SHAPE)
    fabric = _sent("zero-plus-plus", 64)["fabric"]
    scales = 1 + 4 / 256
    # Of 4 bits, parts of 1/8 cross between 8 nodes, after a sum inside nodes.
    expected = whole / 2 * scales * 63 / 64 / 8 + whole / 4 * scales / 8 * 7 / 8
    assert fabric == pytest.approx(expected, rel=0.05)


def test_three_levels_cross_the_fabric_once_an_iteration() -> None:
    one, four = (_sent("three-level", 64, count)["fabric"] for count in (1, 4))
    assert one == pytest.approx(four)
    model = _HALF * parameters("gpt", _SHAPE)
    # A node's share of gradients and weights, over as many nodes.
    assert one == pytest.approx(2 * model / 8 * 7 / 8, rel=1e-2)


def test_memory_is_spread_as_the_papers_say() -> None:
    psi = parameters("gpt", _SHAPE)
    for name, weights, gradients, optimizer in (
        ("zero-1", 1, 1, 64),
        ("zero-2", 1, 64, 64),
        ("zero-3", 64, 64, 64),
        ("mics", 8, 8, 8),
        ("three-level", 2, 8, 64),
    ):
        held = held_bytes(_SCHEMES[name].on(_FRONTIER, 64), gpt_units(_SHAPE), _HALF)
        expected = (2 * psi / weights, 4 * psi / gradients, 12 * psi / optimizer)
        found = (held["weights"], held["gradients"], held["optimizer states"])
        assert found == pytest.approx(expected, rel=2e-3)
        assert held["second copy"] == 0
    second = held_bytes(_SCHEMES["hpz"].on(_FRONTIER, 64), gpt_units(_SHAPE), _HALF)["second copy"]
    layers = gpt_units(_SHAPE)[0]
    assert second == 2 * layers.count * layers.elements / 8


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 7)), min_size=1, max_size=5),
    st.sampled_from([(1, 1, 8), (2, 4, 8), (2, 2, 4), (8, 8, 8), (1, 8, 8)]),
)
def test_pieces_of_all_ranks_hold_the_whole(
    shapes: list[tuple[int, int]], spans: tuple[int, int, int]
) -> None:
    unit = Unit(tuple((rows, rows * width) for rows, width in shapes))
    partition = Partition(8, *spans)
    own = shard_sizes(partition, unit)
    assert own.gathered == own.weights * partition.weights >= unit.elements
    assert own.gradients * (spans[1] // spans[0]) >= own.weights
    assert own.optimizer * (spans[2] // spans[1]) >= own.gradients
    # Equal shares cost less than a row of each parameter a rank.
    assert own.gathered - unit.elements < sum(8 * width for _, width in shapes)


def test_a_quantised_block_has_its_scale() -> None:
    assert quantised_bytes(256, 8) == 256 + 4
    assert quantised_bytes(257, 4) == 2 * (128 + 4)


@pytest.mark.parametrize(
    ("name", "ranks", "words"),
    [
        (
            "three-level",
            12,
            "optimizer 12 is not a multiple of gradients 8; fix: choose another",
        ),
        (
            "mics",
            20,
            "ranks 20 is not a multiple of optimizer 8; fix: choose another",
        ),
        (
            "hpz",
            20,
            "weights 20 is not a multiple of secondary 8; fix: choose another",
        ),
    ],
)
def test_groups_that_do_not_divide_are_refused(name: str, ranks: int, words: str) -> None:
    with pytest.raises(ReproError, match=words):
        _SCHEMES[name].on(_FRONTIER, ranks)


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(ReproError, match="unknown scheme 'zero-4'; choose from: zero-1"):
        read_partition_study().scheme("zero-4")
