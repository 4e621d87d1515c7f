"""What is measured of a decoder on this machine's CPU (`params/decoding.yaml`)."""

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt

from repro.catalog.open_models import DecoderShape
from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS

Weights = Literal["bf16", "int8"]


@dataclass(frozen=True)
class Rates:
    """What one rank was measured to reach while all ranks worked: bytes of weights per second that
    one row is multiplied with, FLOP/s of a product of many rows, seconds of an all-reduce of one
    sequence's hidden state (0 where a rank is alone)."""

    bytes_per_s: float
    flops: float
    reduce_s: float


class DecodingProfile(Entry):
    """How much is measured: repeats of the whole, tokens of each configuration in each."""

    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]
    repeats: PositiveInt
    tokens: PositiveInt


class Decoding(Entry):
    """The decoder, precisions of its weights, tensor-parallel ranks, and profiles by name."""

    shape: DecoderShape
    weights: tuple[Weights, ...]
    ranks: tuple[PositiveInt, ...]
    profiles: dict[str, DecodingProfile]

    def profile(self, name: str) -> DecodingProfile:
        """One by name."""
        return choose("profile", name, self.profiles)


def read_decoding() -> Decoding:
    """The file."""
    value: Decoding = read_yaml(PARAMS / "decoding.yaml", Decoding)
    return value
