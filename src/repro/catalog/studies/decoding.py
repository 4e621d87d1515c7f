"""What is measured of a decoder on this machine's CPU (`params/decoding.yaml`)."""

from typing import Literal

from pydantic import PositiveInt

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS

Weights = Literal["bf16", "int8"]


class Probes(Entry):
    """Sizes near those of the decoder, which predictions start from: two decoders of other widths
    and weights a layer, batches and contexts."""

    shapes: tuple[DecoderShape, DecoderShape]
    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]


class DecodingProfile(Entry):
    """How much is measured: repeats of the whole behind one that warms up, and in each so many
    tokens of one sequence, fewer of more."""

    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]
    repeats: PositiveInt
    tokens: PositiveInt


class Decoding(Entry):
    """The decoder, its probes, precisions of weights, tensor-parallel ranks, and
    profiles by name."""

    shape: DecoderShape
    probes: Probes
    weights: tuple[Weights, ...]
    ranks: tuple[PositiveInt, ...]
    profiles: dict[str, DecodingProfile]

    def profile(self, name: str) -> DecodingProfile:
        """One by name."""
        return choose("profile", name, self.profiles)

    def probed_batches(self, profile: DecodingProfile) -> tuple[int, ...]:
        """Those of the probes between which a profile's batches lie."""
        below = sum(batch < max(profile.batches) for batch in self.probes.batches)
        return self.probes.batches[: below + 1]


def read_decoding() -> Decoding:
    """The file."""
    value: Decoding = read_yaml(PARAMS / "decoding.yaml", Decoding)
    return value
