"""Messages and rings between any ranks: shared links, and the closed forms where they hold."""

import numpy as np
import pytest
from examples import CALIBRATED, IDEAL, machine_of

from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import protocol
from repro.predict.network.collectives import message_s, topology_s
from repro.predict.network.machine import (
    Hops,
    Machine,
    machine,
    neighbour_flows,
    nic_bytes,
    placed,
    ring_hops,
    strided,
)
from repro.predict.parameters import Parameters
from repro.predict.workload import Array

_SIZE = 1e9
# Two GPUs a node, 252 Gbit/s each on their bus; between nodes TCP's rate.
_A = machine(cluster("pinnacles"), IDEAL, protocol("tcp"))
_BUS, _NIC = 252e9 / 8, 9.41e9 / 8
_LATENCY = 25e-6


def placed_message_s(size: float, hops: Hops, where: Machine, parameters: Parameters) -> Array:
    return parameters.hop_s + message_s(size, hops.flows(where), where)


def placed_all_reduce_s(
    size: float, members: Array, where: Machine, parameters: Parameters
) -> Array:
    return topology_s("all_reduce", size, placed(members, where), parameters)


def _hops(senders: list[int], receivers: list[int]) -> Hops:
    return Hops(np.array(senders), np.array(receivers))


@pytest.mark.parametrize(
    ("senders", "receivers", "expected"),
    [
        ([0], [1], _SIZE / _BUS),
        ([1], [2], _SIZE / _NIC + _LATENCY),
        ([0], [7], _SIZE / _NIC + _LATENCY),
        # Two replicas of a node share its NIC; of two nodes they do not.
        ([0, 1], [2, 3], 2 * _SIZE / _NIC + _LATENCY),
        ([0, 2], [4, 6], _SIZE / _NIC + _LATENCY),
        # They also share the NIC that they send to.
        ([0, 2], [4, 5], 2 * _SIZE / _NIC + _LATENCY),
        # Full duplex: a node sends and receives at the same time.
        ([0, 2], [2, 4], _SIZE / _NIC + _LATENCY),
        # The slowest of several.
        ([0, 3], [1, 4], _SIZE / _NIC + _LATENCY),
    ],
)
def test_messages_share_links(senders: list[int], receivers: list[int], expected: float) -> None:
    hops = _hops(senders, receivers)
    for way in (hops, hops.backward()):
        assert placed_message_s(_SIZE, way, _A, IDEAL) == pytest.approx(expected, rel=1e-12)


def test_a_message_has_a_start_of_its_own() -> None:
    slow = IDEAL.model_copy(update={"hop_s": 0.5})
    found = placed_message_s(_SIZE, _hops([0], [1]), _A, slow)
    assert found == pytest.approx(0.5 + _SIZE / _BUS, rel=1e-12)


@pytest.mark.parametrize("name", ["pinnacles", "cluster-b", "frontier", "dgx-a100"])
@pytest.mark.parametrize("share", [0.5, 1, 2])
def test_neighbours_in_pipelines_are_the_closed_form(name: str, share: float) -> None:
    """Stages of half a node, of one, and of two, four in a row."""
    where = machine_of(name)
    stride = int(share * where.gpus_per_node)
    ranks = np.arange(3 * stride)
    found = placed_message_s(_SIZE, Hops(ranks, ranks + stride), where, CALIBRATED)
    flows = neighbour_flows(np.array(float(stride)), np.array(4.0 * stride), where)
    expected = CALIBRATED.hop_s + message_s(_SIZE, flows, where)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["pinnacles", "cluster-b", "dgx-a100"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
def test_rings_that_fill_nodes_are_the_closed_form(name: str, ranks: int) -> None:
    where = machine_of(name)
    members = np.arange(ranks)[:, None]
    found = placed_all_reduce_s(_SIZE, members, where, CALIBRATED)
    filled = strided(np.array(float(ranks)), np.ones(()), where)
    expected = topology_s("all_reduce", _SIZE, filled, CALIBRATED)
    assert found == pytest.approx(expected, rel=1e-12)


def test_two_ends_send_their_whole_table_once() -> None:
    # 2 (n-1)/n S = S for two; ranks 0 and 7 are alone on their NICs.
    apart = placed_all_reduce_s(_SIZE, np.array([[0], [7]]), _A, IDEAL)
    assert apart == pytest.approx(_SIZE / _NIC + 2 * _LATENCY, rel=1e-12)
    # Two replicas share the NICs of the first node and of the last.
    both = placed_all_reduce_s(_SIZE, np.array([[0, 1], [6, 7]]), _A, IDEAL)
    assert both == pytest.approx(2 * _SIZE / _NIC + 2 * _LATENCY, rel=1e-12)
    # Three copies, two of them on one node: 4/3 S.
    three = placed_all_reduce_s(_SIZE, np.array([[0], [2], [3]]), _A, IDEAL)
    assert three == pytest.approx(4 / 3 * _SIZE / _NIC + 2 * _LATENCY, rel=1e-12)


def test_a_ring_of_one_takes_no_time() -> None:
    assert placed_all_reduce_s(_SIZE, np.array([[3, 4]]), _A, CALIBRATED) == 0


def test_drawn_rates_have_times_each() -> None:
    drawn = CALIBRATED.model_copy(update={"fabric_efficiency": np.array([0.5, 1.0])})
    where = machine(cluster("cluster-b"), drawn)
    times = placed_message_s(_SIZE, _hops([3], [4]), where, drawn)
    assert times - CALIBRATED.hop_s == pytest.approx(_SIZE / (100e9 / 8 * np.array([0.5, 1])))


def test_bytes_of_a_ring_over_nodes() -> None:
    sent, received = nic_bytes(ring_hops(np.arange(8)[:, None]), 3.0, _A, 4)
    assert sent.tolist() == [3.0] * 4 and received.tolist() == [3.0] * 4


def test_bytes_within_a_node_do_not_count() -> None:
    sent, received = nic_bytes(_hops([0, 1, 4], [1, 2, 0]), 3.0, _A, 4)
    assert sent.tolist() == [3.0, 0.0, 3.0, 0.0]
    assert received.tolist() == [3.0, 3.0, 0.0, 0.0]
