"""Study of a decoder on this machine's CPU (`params/decoding.yaml`)."""

from typing import Literal

from pydantic import PositiveInt

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.reading import Entry, choose, read_params

Weights = Literal["bf16", "int8"]


class DecodingProfile(Entry):
    """Batches, and numbers of cached tokens (contexts), that are measured."""

    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]


class Decoding(Entry):
    """Decoder, precisions of its weights, and profiles by name."""

    shape: DecoderShape
    weights: tuple[Weights, ...]
    profiles: dict[str, DecodingProfile]

    def profile(self, name: str) -> DecodingProfile:
        """Return a profile by name; an unknown name is a `ReproError` that lists the choices."""
        return choose("profile", name, self.profiles)


def read_decoding() -> Decoding:
    """Read `params/decoding.yaml`."""
    value: Decoding = read_params("decoding.yaml", Decoding)
    return value
