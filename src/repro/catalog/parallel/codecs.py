"""Codecs that compress training messages, one per parallel direction."""

from typing import Literal, get_args

from pydantic import NonNegativeInt, PositiveInt, model_validator

from repro.catalog.reading import Entry
from repro.errors import ReproError

Kind = Literal["zfp-rate", "zfp-accuracy", "integers", "fp8", "top-k", "zstd", "power-sgd"]
Direction = Literal["data", "tensor", "pipeline", "weights"]
# Name of each kind's only setting.
_SETTINGS = {
    "zfp-rate": "bits",
    "zfp-accuracy": "tolerance",
    "integers": "bits",
    "top-k": "share",
    "power-sgd": "rank",
}
# ZFP limits in bits per number: a block of four has one bit for zero and eight for its exponent.
_MIN_RATE, _MAX_RATE = 2.25, 32.0
INTEGER_BITS = (8, 4)
# Kinds whose encoded size depends on the numbers.
VARIABLE: tuple[Kind, ...] = ("zfp-accuracy", "zstd")


class Codec(Entry):
    """Codec with its one setting.

    Attributes
    ----------
    kind
        `zfp-rate`: ZFP with `bits` per number. `zfp-accuracy`: ZFP with an error of at most
        `tolerance` per number. `integers`: 8 or 4 `bits`, with one scale per block. `fp8`: E4M3
        with one scale. `top-k`: the largest numbers, a fraction `share` of all. `zstd`: lossless.
        `power-sgd`: product of matrices with `rank` columns, for gradients only.
    """

    kind: Kind
    bits: float | None = None
    tolerance: float | None = None
    share: float | None = None
    rank: PositiveInt | None = None

    @model_validator(mode="after")
    def _has_its_setting(self) -> "Codec":
        setting = _SETTINGS.get(self.kind)
        for name in ("bits", "tolerance", "share", "rank"):
            given = getattr(self, name)
            if name == setting and given is None:
                raise ReproError(f"codec {self.kind}: {name} is missing; fix: set it")
            if name != setting and given is not None:
                raise ReproError(f"codec {self.kind} has no {name} (got {given:g}); fix: remove it")
        rate, tolerance, share = self.bits or 0.0, self.tolerance or 0.0, self.share or 0.0
        if self.kind == "zfp-rate" and not (
            _MIN_RATE <= rate <= _MAX_RATE and (4 * rate).is_integer()
        ):
            raise ReproError(
                f"codec zfp-rate: bits is {self.bits:g} per number; choose a multiple of 0.25 from "
                f"{_MIN_RATE:g} to {_MAX_RATE:g}"
            )
        if self.kind == "integers" and rate not in INTEGER_BITS:
            raise ReproError(f"codec integers: bits is {self.bits:g}; choose 8 or 4")
        if self.kind == "zfp-accuracy" and not 0 < tolerance < float("inf"):
            raise ReproError(
                f"codec zfp-accuracy: tolerance is {self.tolerance:g}; choose one above 0, or the "
                "lossless codec zstd"
            )
        if self.kind == "top-k" and not 0 < share <= 1:
            raise ReproError(
                f"codec top-k: share is {self.share:g}; choose one above 0 and at most 1"
            )
        return self


class Compression(Entry):
    """Codec of each parallel direction's messages; None sends them uncompressed.

    Attributes
    ----------
    data
        Codec of gradients that replicas sum, and of embedding gradients that pipeline stages sum.
    tensor
        Codec of activations and their gradients that tensor-parallel ranks sum.
    pipeline
        Codec of activations and their gradients sent between pipeline stages.
    weights
        Codec of weights that ranks gather before a pass (`repro.catalog.parallel.partitions`).
    error_feedback
        Whether the encoding error of a gradient is added to the next iteration's (Seide et al.,
        Interspeech 2014; Karimireddy et al., ICML 2019).
    smallest_bytes
        Messages of fewer bytes are sent uncompressed, because encoding them would take longer.
    """

    label: str
    data: Codec | None = None
    tensor: Codec | None = None
    pipeline: Codec | None = None
    weights: Codec | None = None
    error_feedback: bool = False
    smallest_bytes: NonNegativeInt = 4096

    @model_validator(mode="after")
    def _check_codecs(self) -> "Compression":
        if self.error_feedback and self.data is None:
            raise ReproError(
                f"compression {self.label}: error_feedback without a codec for gradients; fix: set "
                "data or remove error_feedback"
            )
        for direction, codec in (("pipeline", self.pipeline), ("weights", self.weights)):
            if codec is not None and codec.kind in VARIABLE:
                raise ReproError(
                    f"compression {self.label}: codec {codec.kind} has no fixed message size, as "
                    f"{direction} needs; fix: choose another codec"
                )
        for direction, codec in self.by_direction().items():
            if codec.kind == "power-sgd" and direction != "data":
                raise ReproError(
                    f"compression {self.label}: power-sgd is for gradients (data) only; fix: "
                    f"choose another codec for {direction}"
                )
        return self

    def by_direction(self) -> dict[Direction, Codec]:
        """Return the codecs by direction, without directions that have none."""
        found = {name: getattr(self, name) for name in get_args(Direction)}
        return {name: codec for name, codec in found.items() if codec is not None}
