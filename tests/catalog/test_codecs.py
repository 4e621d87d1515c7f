"""Settings that a codec does not have are refused, each in a line."""

from typing import Any

import pytest

from repro.catalog.parallel.codecs import Codec, Compression
from repro.catalog.parallel.layouts import read_plan
from repro.catalog.studies.compression import read_compression_study
from repro.errors import ReproError


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"kind": "zfp-rate", "bits": 40},
            "bits is 40 per number; choose a multiple of 0.25 from 2.25 to",
        ),
        ({"kind": "zfp-rate", "bits": 2}, "bits is 2 per number; choose"),
        ({"kind": "zfp-rate", "bits": 8.1}, "multiple of 0.25"),
        ({"kind": "zfp-rate", "bits": float("nan")}, "bits is nan per number; choose"),
        ({"kind": "zfp-rate"}, "bits is missing; fix: set it"),
        ({"kind": "zfp-accuracy", "tolerance": 0}, "tolerance is 0; choose one above 0"),
        ({"kind": "zfp-accuracy", "tolerance": float("inf")}, "tolerance is inf"),
        ({"kind": "integers", "bits": 6}, "codec integers: bits is 6; choose 8 or 4"),
        ({"kind": "top-k", "share": 1.5}, "share is 1.5; choose one above 0 and at most 1"),
        ({"kind": "fp8", "bits": 8}, r"codec fp8 has no bits \(got 8\); fix: remove it"),
    ],
)
def test_a_setting_that_a_codec_does_not_have(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ReproError, match=words):
        Codec(**given)


def test_feedback_needs_a_codec_of_gradients() -> None:
    with pytest.raises(ReproError, match="error_feedback without a codec for gradients; fix: set"):
        Compression(label="x", error_feedback=True, tensor=Codec(kind="fp8"))


def test_stages_need_a_codec_of_one_size() -> None:
    with pytest.raises(ReproError, match="codec zstd has no fixed message size, as pipeline needs"):
        Compression(label="x", pipeline=Codec(kind="zstd"))


def test_the_studys_schemes_are_what_they_are_called() -> None:
    study = read_compression_study()
    assert {*study.timed.schemes, *study.losses.schemes} <= set(study.schemes)
    assert read_plan(study.trained.plan).ranks == study.trained.gpus
    for name, one in study.schemes.items():
        codecs = {one.data, one.tensor, one.pipeline}
        if name == "none":
            assert codecs == {None}
        elif name.startswith("naive"):
            assert len(codecs) == 1
        else:
            assert one.data and one.tensor and one.tensor == one.pipeline
            assert one.data.bits and one.tensor.bits
            assert (one.data.bits < one.tensor.bits) == name.startswith("hybrid")
