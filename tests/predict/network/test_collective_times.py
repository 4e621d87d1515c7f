"""Collectives and messages against closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from examples import CALIBRATED, IDEAL, machine_of, machines, with_free_links
from hypothesis import given
from hypothesis import strategies as st

from repro.predict.network import collectives
from repro.predict.network.collectives import topology_s
from repro.predict.network.machine import Machine, neighbour_flows, strided
from repro.predict.parameters import Parameters
from repro.predict.workload import Array

_S = np.array(1e9)
_GBYTE_PER_GBIT = 1e9 / 8
_DGX = machine_of("dgx-a100", IDEAL)
_RANKS = st.sampled_from([1, 2, 3, 4, 8, 16, 64])


def _of(*values: float) -> Array:
    return np.array(values, dtype=float)


def all_reduce_s(
    size: Array,
    ranks: Array,
    stride: Array,
    machine: Machine,
    parameters: Parameters,
    beside: Array | None = None,
) -> Array:
    group = strided(ranks, stride, machine, beside)
    return topology_s("all_reduce", size, group, parameters)


def half_all_reduce_s(
    size: Array, ranks: Array, stride: Array, machine: Machine, parameters: Parameters
) -> Array:
    found = [
        topology_s(half, size, strided(ranks, stride, machine), parameters)
        for half in ("reduce_scatter", "all_gather")
    ]
    assert (found[0] == found[1]).all()
    return found[0]


def ring_bytes_per_s(
    ranks: Array, stride: Array, machine: Machine, parameters: Parameters
) -> Array:
    return collectives.ring_bytes_per_s(strided(ranks, stride, machine), parameters)


def ring_latency_s(ranks: Array, stride: Array, machine: Machine, parameters: Parameters) -> Array:
    return collectives.ring_latency_s(strided(ranks, stride, machine), parameters)


def message_s(size: Array, stride: Array, ranks: Array, machine: Machine) -> Array:
    return collectives.message_s(size, neighbour_flows(stride, ranks, machine), machine)


def test_rings_in_a_node_move_two_times_n_minus_one_nths() -> None:
    n = _of(2, 3, 4, 8)
    expected = 2 * (n - 1) / n * 1e9 / (2400 * _GBYTE_PER_GBIT)
    assert all_reduce_s(_S, n, _of(1), _DGX, IDEAL) == pytest.approx(expected, rel=1e-12)
    assert half_all_reduce_s(_S, n, _of(1), _DGX, IDEAL) == pytest.approx(expected / 2, rel=1e-12)


def test_a_ring_across_nodes_has_the_nodes_link_whatever_its_ranks_there() -> None:
    n = _of(16, 32)
    expected = 2 * (n - 1) / n * 1e9 / (1600 * _GBYTE_PER_GBIT)
    assert all_reduce_s(_S, n, _of(1), _DGX, IDEAL) == pytest.approx(expected, rel=1e-12)


def test_rings_of_a_node_share_its_link() -> None:
    # Data-parallel groups beside tensor-parallel ones of 1, 2, 4, 8 and 16 GPUs: of eight GPUs.
    rates = ring_bytes_per_s(_of(16), _of(1, 2, 4, 8, 16), _DGX, IDEAL)
    assert rates / _GBYTE_PER_GBIT == pytest.approx([1600, 800, 400, 200, 200])


def test_groups_that_stay_in_a_node_do_not_see_the_fabric() -> None:
    slow = replace(_DGX, levels=(_DGX.levels[0], replace(_DGX.levels[1], bytes_per_s=1.0)))
    rates = ring_bytes_per_s(_of(4, 4, 4), _of(1, 2, 4), slow, IDEAL)
    assert rates.tolist() == [300e9, 300e9, 1.0 / 4]


def test_short_rings_in_a_node_have_less_bandwidth() -> None:
    parameters = IDEAL.model_copy(update={"ring_ramp": 0.5, "collective_efficiency": 0.8})
    rates = ring_bytes_per_s(_of(2, 8), _of(1), machine_of("dgx-a100", parameters), parameters)
    assert rates == pytest.approx([0.8 * 300e9 * 2 / 2.5, 0.8 * 300e9 * 8 / 8.5])


def test_rings_that_share_nics() -> None:
    sharing = machine_of("dgx-a100-800g", IDEAL)
    alone = replace(sharing, ring_sharing=False)
    stride = _of(1, 2, 4, 8)
    slower = ring_bytes_per_s(_of(16), stride, alone, IDEAL) / ring_bytes_per_s(
        _of(16), stride, sharing, IDEAL
    )
    # Of 1 x 8, 2 x 4, 4 x 2 and 8 x 1 ranks in a node; a single ring shares with nobody.
    assert slower == pytest.approx([1, 4**2, 2**2, 1])


@pytest.mark.parametrize(
    ("ranks", "stride", "nodes"), [(8, 1, 1), (16, 1, 2), (16, 8, 16), (64, 2, 16), (2, 64, 2)]
)
def test_rings_over_more_nodes_have_less_bandwidth(ranks: int, stride: int, nodes: int) -> None:
    parameters = IDEAL.model_copy(update={"congestion_exponent": 0.2})
    free = ring_bytes_per_s(_of(ranks), _of(stride), _DGX, IDEAL)
    congested = ring_bytes_per_s(_of(ranks), _of(stride), _DGX, parameters)
    assert congested == pytest.approx(free * max(nodes / 2, 1) ** -0.2)
    # A rate measured on the fabric has its congestion in it.
    measured = replace(_DGX, levels=(_DGX.levels[0], replace(_DGX.levels[1], measured=True)))
    assert ring_bytes_per_s(_of(ranks), _of(stride), measured, parameters) == free


def test_latency_grows_with_ranks_of_a_node_and_with_doublings_of_nodes() -> None:
    parameters = IDEAL.model_copy(update={"collective_latency_s": 1e-5, "latency_exponent": 1.5})
    fabric = replace(_DGX.levels[1], latency_s=1e-6)
    machine = replace(_DGX, levels=(_DGX.levels[0], fabric))
    inside = ring_latency_s(_of(1, 2, 4, 8), _of(1), machine, parameters)
    assert inside == pytest.approx(1e-5 * _of(0, 2, 4, 8) ** 1.5)
    across = ring_latency_s(_of(16, 32), _of(1), machine, parameters)
    assert across == pytest.approx(1e-5 * 8**1.5 + 2e-6 * _of(1, 2))
    # One rank per node.
    assert ring_latency_s(_of(4), _of(8), machine, parameters) == pytest.approx(
        1e-5 * 2**1.5 + 2e-6 * 2
    )


@given(machines, _RANKS, _RANKS)
def test_all_reduce_is_reduce_scatter_and_all_gather_in_one(
    machine: Machine, ranks: int, stride: int
) -> None:
    n, k = _of(ranks), _of(stride)
    whole = all_reduce_s(_S, n, k, machine, CALIBRATED)
    half = half_all_reduce_s(_S, n, k, machine, CALIBRATED)
    latency = ring_latency_s(n, k, machine, CALIBRATED)
    assert whole + latency == pytest.approx(2 * half, rel=1e-12)


@given(machines, _RANKS, _RANKS)
def test_free_links_take_no_time(machine: Machine, ranks: int, stride: int) -> None:
    free = with_free_links(machine)
    nothing = CALIBRATED.model_copy(update={"collective_latency_s": 0.0})
    assert all_reduce_s(_S, _of(ranks), _of(stride), free, nothing) == 0
    assert message_s(_S, _of(stride), _of(ranks * stride), free) == 0


@given(machines, _RANKS)
def test_one_rank_waits_for_nobody(machine: Machine, stride: int) -> None:
    assert all_reduce_s(_S, _of(1), _of(stride), machine, CALIBRATED) == 0


@given(machines, _RANKS, _RANKS, st.floats(1, 1e3), st.sampled_from([0, -1]))
def test_faster_links_never_take_longer(
    machine: Machine, ranks: int, stride: int, factor: float, number: int
) -> None:
    levels = list(machine.levels)
    levels[number] = replace(levels[number], bytes_per_s=factor * levels[number].bytes_per_s)
    faster = replace(machine, levels=tuple(levels))
    n, k = _of(ranks), _of(stride)
    assert all_reduce_s(_S, n, k, faster, CALIBRATED) <= all_reduce_s(_S, n, k, machine, CALIBRATED)
    assert message_s(_S, k, n * k, faster) <= message_s(_S, k, n * k, machine)


def test_messages_cross_the_levels_between_their_ranks() -> None:
    frontier = machine_of("frontier", IDEAL)
    levels = [replace(level, latency_s=1e-6) for level in frontier.levels]
    machine = replace(frontier, levels=tuple(levels))
    # To the package's other die, to the next package (two dies share its links), to the next node
    # (eight dies share its NICs).
    rates = _of(1600, 800 / 2, 800 / 8) * _GBYTE_PER_GBIT
    expected = 1e9 / rates + 1e-6 * _of(1, 2, 3)
    assert message_s(_S, _of(1, 2, 8), _of(2, 4, 16), machine) == pytest.approx(expected)
    # Sixteen stages of one die each: one message leaves a node, alone.
    alone = 1e9 / (800 * _GBYTE_PER_GBIT) + 3e-6
    assert message_s(_S, _of(1), _of(16), machine) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("stage", "stages", "flows"), [(1, 8, 0), (2, 4, 0), (4, 4, 4), (8, 16, 8)]
)
def test_ends_of_a_pipeline_share_links_with_the_ranks_beside_them_only(
    stage: int, stages: int, flows: int
) -> None:
    """A node holds pipelines of as many GPUs, whatever lies between their ends; else each of
    a stage's ranks in a node sends to another one, and none in between."""
    found = all_reduce_s(_S, _of(2), _of(stage * (stages - 1)), _DGX, IDEAL, beside=_of(stage))
    rate = 1600 * _GBYTE_PER_GBIT / flows if flows else 2400 * _GBYTE_PER_GBIT
    assert found == pytest.approx(1e9 / rate)
