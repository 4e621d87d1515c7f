"""GPUs by what drivers and tables call them, and what drivers say of their memory."""

import pytest

from repro.catalog.systems.gpus import find_gpu_name, gpu, read_gpus
from repro.errors import ReproError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H200 141GB", "h200-sxm-141gb"),
        ("a100_80gb", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100 40GB PCIe", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_gpus_are_known_by_their_chips_and_words(written: str, name: str) -> None:
    assert find_gpu_name(written) == name


def test_every_gpu_is_called_by_its_own_names() -> None:
    for name, entry in read_gpus().items():
        assert {find_gpu_name(one) for one in (name, entry.label, *entry.published_as)} == {name}


@pytest.mark.parametrize("written", ["NVIDIA H100 PCIe", "Radeon VII"])
def test_what_the_file_has_not_is_not_taken_for_another(written: str) -> None:
    wanted = rf"unknown GPU '{written}'; choose from: a100-sxm-80gb, .*, or add it to params/gpus"
    with pytest.raises(ReproError, match=wanted):
        find_gpu_name(written)


@pytest.mark.parametrize(("name", "gib"), [("h100-sxm-80gb", 79.18), ("h200-sxm-141gb", 139.80)])
def test_memory_is_what_a_driver_says_that_there_is(name: str, gib: float) -> None:
    assert gpu(name).memory_bytes == pytest.approx(gib * 2**30, rel=0.003)
