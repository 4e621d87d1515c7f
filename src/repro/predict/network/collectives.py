"""Time of one collective, or one message, on a machine, with encoding of what it carries.

`collective_s` is the curve of a measured network (`repro.predict.network.links`) at the ranks and
nodes where one was fitted, and `topology_s` elsewhere: a ring, or the exchange of an all-to-all,
over the slowest link that the group crosses. Sizes are by nccl-tests' definition, in bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from repro.predict.network.links import link_factor
from repro.predict.network.machine import Flows, Links, Machine, Placement
from repro.predict.parameters import Parameters
from repro.predict.workload import Array


@dataclass(frozen=True)
class Encoding:
    """Encoding of values on the wire; numbers, or arrays that broadcast against collectives.

    Attributes
    ----------
    kept
        Bytes on the wire per byte of values in half precision.
    encode_s_per_byte, decode_s_per_byte
        Seconds per byte of values in half precision.
    call_s
        Additional seconds per call that encodes or decodes.
    every_hop
        Whether a ring encodes unchanged values again at every hop, as a library that compresses
        single messages does. Otherwise each owner encodes its part once.
    pipelined
        Whether encoding and decoding overlap with transfers.
    """

    kept: Array | float = 1.0
    encode_s_per_byte: Array | float = 0.0
    decode_s_per_byte: Array | float = 0.0
    call_s: Array | float = 0.0
    every_hop: bool = True
    pipelined: bool = False

    def time_s(
        self,
        operation: str,
        size_bytes: Array | float,
        ranks: Array,
        wire_s: Callable[[Array], Array],
    ) -> Array:
        """Predict seconds of a collective, or a message, of values in half precision.

        `wire_s` returns the seconds of bytes on the wire.
        """
        size = np.asarray(size_bytes, dtype=float)
        if self is PLAIN:
            return wire_s(size)
        wire = wire_s(self.kept * size)
        coding = self.coding_s(operation, size, ranks)
        return np.maximum(wire, coding) if self.pipelined else wire + coding

    def coding_s(self, operation: str, size_bytes: Array, ranks: Array) -> Array:
        """Predict seconds of encoding and decoding per rank; 0 for a single rank."""
        encoded, decoded, calls = coded_bytes(operation, size_bytes, ranks, self.every_hop)
        coding: Array = (
            encoded * self.encode_s_per_byte
            + decoded * self.decode_s_per_byte
            + calls * self.call_s
        )
        return coding


def coded_bytes(
    operation: str, size_bytes: Array, ranks: Array, every_hop: bool
) -> tuple[Array, Array, Array]:
    """Count bytes that a rank encodes, bytes that it decodes, and calls.

    A ring of S bytes and n ranks has n - 1 hops. Hops that sum decode and encode (n-1)/n S. Hops
    that gather decode as much, and encode S/n once or (n-1)/n S at every hop.
    """
    if operation == "message":
        return size_bytes, size_bytes, np.full_like(size_bytes, 2.0)
    sums, gathers = operation != "all_gather", operation != "reduce_scatter"
    part, hops = size_bytes / ranks, ranks - 1
    own = hops if every_hop else np.minimum(hops, 1.0)
    encodes = sums * hops + gathers * own
    decodes = (sums + gathers) * hops
    return encodes * part, decodes * part, encodes + decodes


PLAIN = Encoding()


@dataclass(frozen=True)
class Encodings:
    """Encodings of tensor parallelism, messages between stages, gradients and parameters."""

    tensor: Encoding = PLAIN
    pipeline: Encoding = PLAIN
    gradients: Encoding = PLAIN
    parameters: Encoding = PLAIN


NOTHING_ENCODED = Encodings()


def collective_s(
    operation: str,
    size_bytes: Array,
    group: Placement,
    parameters: Parameters,
    encoding: Encoding = PLAIN,
) -> Array:
    """Predict seconds of a collective.

    Networks were measured with one group at a time, so groups that share nodes are predicted by
    the topology.
    """
    network = group.machine.network
    if network is None:
        return topology_s(operation, size_bytes, group, parameters, encoding)
    nodes = np.ceil(group.ranks / group.machine.gpus_per_node)
    error = np.asarray(parameters.network_error)

    def wire_s(wire_bytes: Array) -> Array:
        generic = topology_s(operation, wire_bytes, group, parameters)
        measured = network.measured_s(operation, wire_bytes, group.ranks, nodes, error)
        return np.where(group.alone & ~np.isnan(measured), measured, generic)

    return encoding.time_s(operation, size_bytes, group.ranks, wire_s)


def topology_s(
    operation: str,
    size_bytes: Array | float,
    group: Placement,
    parameters: Parameters,
    encoding: Encoding = PLAIN,
) -> Array:
    """Predict seconds of a collective from the rates of the links that its group crosses.

    A ring carries the bus factor times the size over each link; an all-to-all carries over a
    vertex's link what each rank below it sends to each rank outside.
    """

    def wire_s(wire_bytes: Array) -> Array:
        if operation == "all_to_all":
            transfer = _exchange_s(wire_bytes, group, parameters)
        else:
            moved = link_factor(operation, group.ranks, group.ranks) * wire_bytes
            transfer = moved / ring_bytes_per_s(group, parameters)
        return transfer + ring_latency_s(group, parameters)

    return encoding.time_s(operation, size_bytes, group.ranks, wire_s)


def _exchange_s(size_bytes: Array, group: Placement, parameters: Parameters) -> Array:
    """Predict seconds of an all-to-all's transfer over the slowest level."""
    slowest: Array = np.zeros(())
    for level, below, flows in zip(group.machine.levels, group.below, group.flows, strict=True):
        rate = level.bytes_per_s * _congestion(level, group, parameters)
        moved = flows * link_factor("all_to_all", group.ranks, below) * size_bytes
        slowest = np.maximum(slowest, moved / rate)
    return slowest


def ring_bytes_per_s(group: Placement, parameters: Parameters) -> Array:
    """Predict the bus bandwidth of a group's ring while all groups like it are busy."""
    rate: Array = np.array(np.inf)
    for level, flows in zip(group.machine.levels, group.flows, strict=True):
        fraction = _congestion(level, group, parameters)
        if level is not group.machine.levels[-1]:
            fraction = group.ranks / (group.ranks + parameters.ring_ramp)
        elif group.machine.ring_sharing:
            # Each of the m ranks per node crosses the NIC, and the ring has one rank's part of it.
            fraction = fraction * np.where(group.alone, 1.0, group.below[-1] ** -2.0)
        rate = np.minimum(rate, _rate(level, flows) * fraction)
    return rate


def _congestion(level: Links, group: Placement, parameters: Parameters) -> Array | float:
    """Return the fraction of a fabric's rate between two nodes that rings over more nodes get.

    A rate that was measured on the fabric contains its congestion.
    """
    if level is not group.machine.levels[-1] or level.measured:
        return 1.0
    fraction: Array = np.maximum(group.nodes / 2, 1) ** -parameters.congestion_exponent
    return fraction


def ring_latency_s(group: Placement, parameters: Parameters) -> Array:
    """Predict seconds of a collective in addition to its transfer; 0 for a single rank.

    Ranks of one node: latency x n^exponent. Each further doubling of nodes adds two messages over
    the fabric, up and down a tree.
    """
    inside = np.maximum(group.below[-1], 2) ** parameters.latency_exponent
    across = 2 * group.machine.levels[-1].latency_s * np.log2(group.nodes)
    return np.where(group.ranks > 1, parameters.collective_latency_s * inside + across, 0.0)


def message_s(
    size_bytes: Array | float, flows: Flows, machine: Machine, encoding: Encoding = PLAIN
) -> Array:
    """Predict seconds of the slowest of simultaneous messages, without the receiver's `hop_s`.

    Messages that leave or enter one vertex share its link in each direction.
    """
    rate: Array = np.array(np.inf)
    latency: Array = np.zeros(())
    for level, crossing in zip(machine.levels, flows, strict=True):
        rate = np.minimum(rate, _rate(level, crossing))
        latency = latency + np.where(crossing > 0, level.latency_s, 0.0)
    pair = np.array(2.0)
    return encoding.time_s("message", size_bytes, pair, lambda sent: sent / rate + latency)


def _rate(level: Links, flows: Array) -> Array:
    """Return bytes per second of one of `flows` transfers over a link; infinite without any."""
    with np.errstate(divide="ignore"):
        return np.divide(level.bytes_per_s, flows)
