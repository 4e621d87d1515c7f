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
        ({"kind": "zfp-rate", "bits": 40}, "has no rate of 40 bits a number; choose 2.25 to 32"),
        ({"kind": "zfp-rate", "bits": 2}, "has no rate of 2 bits"),
        ({"kind": "zfp-rate", "bits": 8.1}, "multiple of 0.25"),
        ({"kind": "zfp-rate", "bits": float("nan")}, "has no rate of nan bits"),
        ({"kind": "zfp-rate"}, "bits is missing"),
        ({"kind": "zfp-accuracy", "tolerance": 0}, "tolerance is 0; choose one above 0"),
        ({"kind": "zfp-accuracy", "tolerance": float("inf")}, "tolerance is inf"),
        ({"kind": "integers", "bits": 6}, "has no 6 bits; choose 8 or 4"),
        ({"kind": "top-k", "share": 1.5}, "share is 1.5; choose one above 0 and at most 1"),
        ({"kind": "fp8", "bits": 8}, "has no bits, got 8; leave it out"),
    ],
)
def test_a_setting_that_a_codec_does_not_have(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ReproError, match=words):
        Codec(**given)


def test_feedback_needs_a_codec_of_gradients() -> None:
    with pytest.raises(ReproError, match="error_feedback is of gradients"):
        Compression(label="x", error_feedback=True, tensor=Codec(kind="fp8"))


def test_stages_need_a_codec_of_one_size() -> None:
    with pytest.raises(ReproError, match="the size of zstd depends on the numbers"):
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
