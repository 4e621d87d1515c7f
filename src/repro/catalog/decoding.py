"""What is measured of a decoder on this machine's CPU (`params/decoding.yaml`)."""

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt

from repro.catalog.open_models import DecoderShape
from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS

Weights = Literal["bf16", "int8"]


@dataclass(frozen=True)
class Probed:
    """What one rank was measured to take while all ranks worked, at the sizes of `Probes`.

    Attributes
    ----------
    weight_byte_s
        Seconds of products over the bytes of their weights, by batch.
    attention_s
        Seconds of one layer's attention to its cache, by batch and context.
    reduce_s
        Seconds of an all-reduce of the hidden states, by batch; 0 where a rank is alone.
    """

    weight_byte_s: tuple[float, ...]
    attention_s: tuple[tuple[float, ...], ...]
    reduce_s: tuple[float, ...]


class Probes(Entry):
    """Sizes near those of the decoder, at which a rank is measured before: the layers of another
    `shape`, batches and contexts."""

    shape: DecoderShape
    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]


class DecodingProfile(Entry):
    """How much is measured: repeats of the whole, tokens of each configuration in each."""

    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]
    repeats: PositiveInt
    tokens: PositiveInt


class Decoding(Entry):
    """The decoder, what is measured before, precisions of weights, tensor-parallel ranks, and
    profiles by name."""

    shape: DecoderShape
    probes: Probes
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
