"""What messages of training are encoded with: codecs, and one for each parallel direction."""

from typing import Literal, get_args

from pydantic import NonNegativeInt, PositiveInt, model_validator

from repro.catalog.reading import Entry
from repro.errors import ReproError

Kind = Literal["zfp-rate", "zfp-accuracy", "integers", "fp8", "top-k", "zstd", "power-sgd"]
Direction = Literal["data", "tensor", "pipeline", "weights"]
# The one setting that each kind has.
_SETTINGS = {
    "zfp-rate": "bits",
    "zfp-accuracy": "tolerance",
    "integers": "bits",
    "top-k": "share",
    "power-sgd": "rank",
}
# A block of four numbers has a bit that says whether it is zero, and eight of its exponent.
_LEAST_RATE, _MOST_RATE = 2.25, 32.0
INTEGER_BITS = (8, 4)
# Whose size depends on the numbers.
VARIABLE: tuple[Kind, ...] = ("zfp-accuracy", "zstd")


class Codec(Entry):
    """A codec at one setting.

    Attributes
    ----------
    kind
        `zfp-rate` is ZFP at `bits` a number, `zfp-accuracy` ZFP with no number off by more than
        `tolerance`; `integers` have 8 or 4 `bits` and a scale for each block; `fp8` is E4M3 with
        one scale; `top-k` sends the largest numbers, a `share` of all; `zstd` loses nothing;
        `power-sgd`, of gradients only, is a product of matrices of `rank` columns.
    """

    kind: Kind
    bits: float | None = None
    tolerance: float | None = None
    share: float | None = None
    rank: PositiveInt | None = None

    @model_validator(mode="after")
    def _has_its_setting(self) -> "Codec":
        wanted = _SETTINGS.get(self.kind)
        for name in ("bits", "tolerance", "share", "rank"):
            given = getattr(self, name)
            if name == wanted and given is None:
                raise ReproError(f"codec {self.kind}: {name} is missing; give it a value")
            if name != wanted and given is not None:
                raise ReproError(f"codec {self.kind}: has no {name}, got {given:g}; leave it out")
        rate, tolerance, share = self.bits or 0.0, self.tolerance or 0.0, self.share or 0.0
        if self.kind == "zfp-rate" and not (
            _LEAST_RATE <= rate <= _MOST_RATE and (4 * rate).is_integer()
        ):
            raise ReproError(
                f"codec zfp-rate: has no rate of {self.bits:g} bits a number; choose "
                f"{_LEAST_RATE:g} to {_MOST_RATE:g}, a multiple of 0.25"
            )
        if self.kind == "integers" and rate not in INTEGER_BITS:
            raise ReproError(f"codec integers: has no {self.bits:g} bits; choose 8 or 4")
        if self.kind == "zfp-accuracy" and not 0 < tolerance < float("inf"):
            raise ReproError(
                f"codec zfp-accuracy: tolerance is {self.tolerance:g}; choose one above 0, or "
                "codec zstd, which loses nothing"
            )
        if self.kind == "top-k" and not 0 < share <= 1:
            raise ReproError(
                f"codec top-k: share is {self.share:g}; choose one above 0 and at most 1"
            )
        return self


class Compression(Entry):
    """What each parallel direction's messages are encoded with; None: as they are.

    Attributes
    ----------
    data
        Of gradients that replicas sum, and of embeddings' gradients that pipeline stages sum.
    tensor
        Of activations and their gradients that tensor-parallel ranks sum.
    pipeline
        Of those that stages hand on.
    weights
        Of weights that ranks gather in front of a pass (`repro.catalog.parallel.partitions`).
    error_feedback
        Whether what encoding lost of a gradient is added to the next iteration's (Seide et al.,
        Interspeech 2014; Karimireddy et al., ICML 2019).
    smallest_bytes
        Messages of fewer bytes are sent as they are: encoding them would take longer.
    """

    label: str
    data: Codec | None = None
    tensor: Codec | None = None
    pipeline: Codec | None = None
    weights: Codec | None = None
    error_feedback: bool = False
    smallest_bytes: NonNegativeInt = 4096

    @model_validator(mode="after")
    def _fits(self) -> "Compression":
        if self.error_feedback and self.data is None:
            raise ReproError(
                f"compression {self.label}: error_feedback is of gradients, and data has no codec; "
                "give it one, or leave error_feedback out"
            )
        for direction, codec in (("pipeline", self.pipeline), ("weights", self.weights)):
            if codec is not None and codec.kind in VARIABLE:
                raise ReproError(
                    f"compression {self.label}: the size of {codec.kind} depends on the numbers, "
                    f"and messages of {direction} have one size; choose another codec"
                )
        for direction, codec in self.by_direction().items():
            if codec.kind == "power-sgd" and direction != "data":
                raise ReproError(
                    f"compression {self.label}: power-sgd is for gradients, which are alike from "
                    f"one iteration to the next; choose another codec for {direction}"
                )
        return self

    def by_direction(self) -> dict[Direction, Codec]:
        """Those directions that have a codec."""
        found = {name: getattr(self, name) for name in get_args(Direction)}
        return {name: codec for name, codec in found.items() if codec is not None}
