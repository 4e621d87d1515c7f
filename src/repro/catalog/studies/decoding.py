"""Study of a decoder on this machine's CPU (`params/decoding.yaml`)."""

from typing import Literal

from pydantic import PositiveInt

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.reading import Entry, choose, read_params

Weights = Literal["bf16", "int8"]


class Probes(Entry):
    """Decoders, batches and contexts near the measured ones, from which predictions start."""

    shapes: tuple[DecoderShape, DecoderShape]
    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]


class DecodingProfile(Entry):
    """Batches, contexts and repeats that are measured after a warm-up.

    Each repeat writes `tokens` tokens of one sequence, fewer if the batch has more.
    """

    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]
    repeats: PositiveInt
    tokens: PositiveInt


class Decoding(Entry):
    """Decoder, its probes, precisions of weights, tensor-parallel ranks, and profiles by name."""

    shape: DecoderShape
    probes: Probes
    weights: tuple[Weights, ...]
    ranks: tuple[PositiveInt, ...]
    profiles: dict[str, DecodingProfile]

    def profile(self, name: str) -> DecodingProfile:
        """Return a profile by name; an unknown name is a `ReproError` that lists the choices."""
        return choose("profile", name, self.profiles)

    def probed_batches(self, profile: DecodingProfile) -> tuple[int, ...]:
        """Return the probes' batches that enclose those of a profile."""
        below = sum(batch < max(profile.batches) for batch in self.probes.batches)
        return self.probes.batches[: below + 1]


def read_decoding() -> Decoding:
    """Read `params/decoding.yaml`."""
    value: Decoding = read_params("decoding.yaml", Decoding)
    return value
