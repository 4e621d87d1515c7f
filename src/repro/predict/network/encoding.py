"""Encoded collectives and messages: fewer bytes on the wire, and time to encode and decode.

A ring that sums decodes, adds and encodes again at each of its n - 1 hops. In a ring that gathers,
the owner can encode its part once, and the others pass it on. A library that compresses single
messages encodes it at every hop.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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
        Whether a ring encodes unchanged values again at every hop.
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
        """Predict seconds of a collective, or a message, with its encoding and decoding.

        Parameters
        ----------
        size_bytes
            Size of the values in half precision, by nccl-tests' definition.
        wire_s
            Function from bytes to seconds without coding.
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

    With S bytes and n ranks, hops that sum encode and decode (n-1)/n S. Hops that gather decode as
    much, and encode S/n once or (n-1)/n S at every hop.
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
    """Encodings of a training step's communication.

    They cover tensor parallelism, messages between stages, gradient sync and parameter all-gather.
    """

    tensor: Encoding = PLAIN
    pipeline: Encoding = PLAIN
    gradients: Encoding = PLAIN
    parameters: Encoding = PLAIN


NOTHING_ENCODED = Encodings()
