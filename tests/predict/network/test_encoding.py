"""Encoded collectives: nothing where nothing is encoded, coding by counted hops, break-even."""

from dataclasses import replace

import numpy as np
import pytest
from examples import CALIBRATED, IDEAL, machine_of, machines, workloads
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from repro.collectives.definitions import bus_factor
from repro.predict.network.collectives import (
    PLAIN,
    Encoding,
    Encodings,
    coded_bytes,
    message_s,
    topology_s,
)
from repro.predict.network.machine import Links, Machine, neighbour_flows, strided
from repro.predict.step.iteration import predict_phases
from repro.predict.workload import Array, Workload

_SLOW = Encoding(kept=0.5, encode_s_per_byte=2e-11, decode_s_per_byte=1e-11, call_s=1e-5)
_OPERATIONS: tuple[str, ...] = ("all_reduce", "reduce_scatter", "all_gather", "message")


def _ring(ranks: int, every_hop: bool) -> dict[str, tuple[int, int]]:
    """Chunks that one rank encodes and decodes, counted hop by hop, by operation."""
    summed, gathered = [0, 0], [0, 0]
    for _ in range(ranks - 1):
        # What it sends holds its own part, so that it is new; what it gets is added to the next.
        summed[0] += 1
        summed[1] += 1
    for hop in range(ranks - 1):
        # Its own sum first, then what came before.
        gathered[0] += hop == 0 or every_hop
        gathered[1] += 1
    both = (summed[0] + gathered[0], summed[1] + gathered[1])
    return {
        "all_reduce": both,
        "reduce_scatter": (summed[0], summed[1]),
        "all_gather": (gathered[0], gathered[1]),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 24])
@pytest.mark.parametrize("every_hop", [True, False])
def test_chunks_are_those_of_a_ring(ranks: int, every_hop: bool) -> None:
    size, n = np.array([1e6]), np.array([float(ranks)])
    for operation, (encodes, decodes) in _ring(ranks, every_hop).items():
        encoded, decoded, calls = coded_bytes(operation, size, n, every_hop)
        assert encoded == pytest.approx(encodes * size / ranks)
        assert decoded == pytest.approx(decodes * size / ranks)
        assert calls == encodes + decodes


@given(workloads(most=3), machines)
def test_an_encoding_that_keeps_all_and_costs_nothing_changes_no_bit(
    w: Workload, machine: Machine
) -> None:
    same = Encoding(kept=1.0)
    plain = predict_phases(w, machine, CALIBRATED)
    encoded = predict_phases(w, machine, CALIBRATED, Encodings(same, same, same, same))
    for name, seconds in vars(plain).items():
        assert (getattr(encoded, name) == seconds).all(), name


@pytest.mark.parametrize(
    ("group", "phases"),
    [
        # Backward passes that end sooner hide less of the gradient sync.
        (
            "tensor",
            {"tensor_parallel", "forward_receive", "pipeline_bubble", "straggler_wait"}
            | {"gradient_sync"},
        ),
        ("pipeline", {"forward_receive", "pipeline_bubble", "straggler_wait"}),
        ("gradients", {"gradient_sync"}),
        ("parameters", {"parameter_all_gather"}),
    ],
)
@given(w=workloads(most=3), machine=machines)
def test_an_encoding_changes_its_groups_phases_only(
    group: str, phases: set[str], w: Workload, machine: Machine
) -> None:
    plain = predict_phases(w, machine, CALIBRATED)
    free = predict_phases(w, machine, CALIBRATED, Encodings(**{group: Encoding(kept=0.5)}))
    costly = predict_phases(w, machine, CALIBRATED, Encodings(**{group: replace(_SLOW, kept=1.0)}))
    for name in set(vars(plain)) - phases:
        for one in (free, costly):
            assert (getattr(one, name) == getattr(plain, name)).all(), name
    times = [one.iteration_time_s for one in (free, plain, costly)]
    assert (np.diff(times, axis=0) >= -1e-12 * times[0]).all()


@given(
    operation=st.sampled_from(_OPERATIONS),
    ranks=st.integers(2, 64),
    kept=st.floats(0.1, 0.9),
    every_hop=st.booleans(),
    pipelined=st.booleans(),
    size=st.floats(1e6, 1e9),
)
def test_the_break_even_is_where_both_take_as_long(
    operation: str, ranks: int, kept: float, every_hop: bool, pipelined: bool, size: float
) -> None:
    one = replace(_SLOW, kept=kept, every_hop=every_hop, pipelined=pipelined)
    n, sizes = np.array([float(ranks)]), np.array([size])

    def difference(logarithm: float) -> float:
        links = (Links("node", 1, np.exp(logarithm)), Links("fabric", ranks, np.inf))
        where = replace(machine_of("lassen", IDEAL), levels=links)

        def time_s(encoding: Encoding) -> Array:
            if operation == "message":
                flows = neighbour_flows(np.ones(1), n, where)
                return message_s(sizes, flows, where, encoding)
            return topology_s(operation, sizes, strided(n, np.ones(1), where), IDEAL, encoding)

        plain, encoded = time_s(PLAIN), time_s(one)
        return float(np.log(encoded / plain)[0])

    # Encoding saves (1 - kept) of V bytes on the wire, or all of them if coding is hidden.
    moved = bus_factor("send_recv" if operation == "message" else operation, n) * sizes
    saved = moved if pipelined else (1 - kept) * moved
    expected = float((saved / one.coding_s(operation, sizes, n))[0])
    found = brentq(difference, np.log(expected / 10), np.log(expected * 10))
    assert np.exp(found) == pytest.approx(expected, rel=1e-6)
