"""What encoding does to collectives: fewer bytes on the wire, and time to encode and decode.

A ring encodes at hops: what is summed has to be decoded, added to and encoded again at each of its
n - 1 hops. What is gathered its owner can encode once, and all others hand on as it came; a library
that compresses messages, and knows of no collective, encodes it at every hop too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from repro.predict.workload import Array

Operation = Literal["all_reduce", "reduce_scatter", "all_gather", "message"]


@dataclass(frozen=True)
class Encoding:
    """How values travel. Fields are numbers, or arrays that broadcast against collectives.

    Attributes
    ----------
    kept
        Bytes on the wire, of those in half precision.
    encode_s_per_byte, decode_s_per_byte
        Of values in half precision.
    call_s
        More for each time that something is encoded, or decoded.
    every_hop
        Whether a ring encodes again what it hands on unchanged.
    pipelined
        Whether encoding and decoding go on while others' bytes are on the wire.
    """

    kept: Array | float = 1.0
    encode_s_per_byte: Array | float = 0.0
    decode_s_per_byte: Array | float = 0.0
    call_s: Array | float = 0.0
    every_hop: bool = True
    pipelined: bool = False

    def time_s(
        self,
        operation: Operation,
        size_bytes: Array,
        ranks: Array,
        wire_s: Callable[[Array], Array],
    ) -> Array:
        """A collective, or a message, with what coding for it takes.

        Parameters
        ----------
        size_bytes
            Of values in half precision, by nccl-tests' definition.
        wire_s
            Its time without coding, of so many bytes.
        """
        if self is PLAIN:
            return wire_s(size_bytes)
        wire = wire_s(self.kept * size_bytes)
        coding = self.coding_s(operation, size_bytes, ranks)
        return np.maximum(wire, coding) if self.pipelined else wire + coding

    def coding_s(self, operation: Operation, size_bytes: Array, ranks: Array) -> Array:
        """What a rank spends on encoding and decoding; none where it is alone."""
        encoded, decoded, calls = coded_bytes(operation, size_bytes, ranks, self.every_hop)
        coding: Array = (
            encoded * self.encode_s_per_byte
            + decoded * self.decode_s_per_byte
            + calls * self.call_s
        )
        return coding


def coded_bytes(
    operation: Operation, size_bytes: Array, ranks: Array, every_hop: bool
) -> tuple[Array, Array, Array]:
    """Bytes that a rank encodes and decodes, and in how many calls.

    With S bytes and n ranks, (n-1)/n S are encoded and decoded in the hops that sum, and decoded in
    those that gather; there S/n is encoded once, or (n-1)/n S at every hop.
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
    """Of a training step's communication: tensor parallelism's, messages between stages, sums of
    gradients, and gathers of parameters."""

    tensor: Encoding = PLAIN
    pipeline: Encoding = PLAIN
    gradients: Encoding = PLAIN
    parameters: Encoding = PLAIN


NOTHING_ENCODED = Encodings()
