"""Data sheets: plausible ones pass, and each usual mistake is named with its field and a fix."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from repro.catalog.jobs import Job, resolve
from repro.catalog.systems.gpu_check import implausible, nearest_gpu, read_gpu_sheet
from repro.catalog.systems.gpus import Gpu, read_gpus
from repro.cli import app
from repro.errors import ReproError
from repro.paths import ROOT

_SOURCE = {"source": "data sheet"}
# NVIDIA H100 PCIe and H100 NVL data sheets, 2023, dense; neither is in params/gpus.yaml.
_H100_PCIE = Gpu(
    label="H100-PCIe-80GB",
    generation="hopper",
    peak_flops=756e12,
    fp8_flops=1513e12,
    memory_gbytes_per_s=2000,
    memory_gb=80,
    multiprocessors=114,
    link_gbytes_per_s=63,
    nic_gbps=400,
    **_SOURCE,
)
_H100_NVL = _H100_PCIE.model_copy(
    update={
        "label": "H100-NVL-94GB",
        "peak_flops": 835.5e12,
        "fp8_flops": 1670.5e12,
        "memory_gbytes_per_s": 3938.0,
        "memory_gb": 94.0,
        "multiprocessors": 132,
        "link_gbytes_per_s": 300.0,
        "domain_gpus": 2,
    }
)


@pytest.mark.parametrize("name", read_gpus())
def test_catalogued_gpus_are_plausible_and_nearest_to_themselves(name: str) -> None:
    sheet = read_gpus()[name]
    assert implausible(sheet) == []
    assert nearest_gpu(sheet) == name


@pytest.mark.parametrize(
    ("sheet", "nearest"), [(_H100_PCIE, "h800-sxm-80gb"), (_H100_NVL, "gh200-96gb")]
)
def test_other_data_sheets_are_plausible(sheet: Gpu, nearest: str) -> None:
    assert implausible(sheet) == []
    assert nearest_gpu(sheet) == nearest


@pytest.mark.parametrize(
    ("name", "changed", "field", "expected"),
    [
        # Sparse peaks, which data sheets print: twice the dense ones.
        ("h100-sxm-80gb", {"peak_flops": 1979e12}, "peak_flops", "3.66 GHz.*not the sparse"),
        ("h100-sxm-80gb", {"fp8_flops": 3958e12}, "fp8_flops", "3.66 GHz.* such as 1.979e"),
        ("a100-sxm-80gb", {"peak_flops": 624e12}, "peak_flops", "2.82 GHz.* such as 3.12e"),
        ("b200-sxm-180gb", {"fp4_flops": 18000e12}, "fp4_flops", "not the sparse one"),
        ("l40s", {"peak_flops": 733e12}, "peak_flops", "5.04 GHz"),
        ("mi300x", {"peak_flops": 2614.9e12}, "peak_flops", "4.20 GHz"),
        # Its clock says nothing: the H20 computes at a quarter of what its units could.
        ("h20-sxm-96gb", {"fp8_flops": 592e12}, "fp8_flops", "4 times peak_flops, .* 2 times"),
        ("h20-sxm-96gb", {"peak_flops": 296e12}, "fp8_flops", "1 times peak_flops"),
        ("mi250x-gcd", {"peak_flops": 383e12}, "peak_flops", "3.40 GHz"),
        ("h100-sxm-80gb", {"peak_flops": 8 * 989e12}, "peak_flops", "dense peak of one GPU$"),
        ("h100-sxm-80gb", {"peak_flops": 989.0}, "peak_flops", r"not TFLOP/s; fix: 989e\+12"),
        ("a100-sxm-80gb", {"fp8_flops": 624e12}, "fp8_flops", "ampere has no units"),
        ("h100-sxm-80gb", {"multiprocessors": 16896}, "multiprocessors", "not of cores"),
        # Both directions.
        ("h100-sxm-80gb", {"link_gbytes_per_s": 900.0}, "link_gbytes_per_s", "such as 450$"),
        ("a100-sxm-80gb", {"link_gbytes_per_s": 600.0}, "link_gbytes_per_s", "such as 300$"),
        ("b200-sxm-180gb", {"link_gbytes_per_s": 1800.0}, "link_gbytes_per_s", "such as 900$"),
        ("mi300x", {"link_gbytes_per_s": 896.0}, "link_gbytes_per_s", "such as 448$"),
        ("a100-pcie-80gb", {"link_gbytes_per_s": 64.0}, "link_gbytes_per_s", "fix: 31.5$"),
        ("rtx-pro-6000-server", {"link_gbytes_per_s": 128.0}, "link_gbytes_per_s", "fix: 63$"),
        ("h800-sxm-80gb", {"link_gbytes_per_s": 400.0}, "link_gbytes_per_s", "has 200; fix: 200"),
        # A card with a board's links, and the other way round.
        ("a100-pcie-80gb", {"link_gbytes_per_s": 300.0}, "link_gbytes_per_s", "joins 2 cards"),
        (
            "h200-nvl-141gb",
            {"domain_gpus": 8},
            "link_gbytes_per_s",
            "joins 4 cards; fix: 63, or domain_gpus 4",
        ),
        ("h100-sxm-80gb", {"link_gbytes_per_s": 63.0}, "link_gbytes_per_s", "PCIe's rate"),
        ("h100-sxm-80gb", {"link_gbytes_per_s": 0.45}, "link_gbytes_per_s", "TB/s; fix: 450"),
        # Units.
        ("h100-sxm-80gb", {"nic_gbps": 50.0}, "nic_gbps", "not GB/s; fix: 400$"),
        ("a100-sxm-80gb", {"nic_gbps": 25.0}, "nic_gbps", "not GB/s; fix: 200$"),
        ("h100-sxm-80gb", {"nic_gbps": 3200.0}, "nic_gbps", "such as 400$"),
        ("h100-sxm-80gb", {"memory_gb": 80.0 * 2**30}, "memory_gb", "not bytes; fix: 80$"),
        ("h100-sxm-80gb", {"memory_gb": 81559.0}, "memory_gb", "not MiB; fix: 79.6$"),
        (
            "h100-sxm-80gb",
            {"memory_gbytes_per_s": 3.352},
            "memory_gbytes_per_s",
            "not TB/s; fix: 3352$",
        ),
        (
            "h100-sxm-80gb",
            {"memory_gbytes_per_s": 8 * 3352.0},
            "memory_gbytes_per_s",
            "not Gbit/s, such as 3352$",
        ),
    ],
)
def test_a_usual_mistake_is_named(
    name: str, changed: dict[str, Any], field: str, expected: str
) -> None:
    sheet = read_gpus()[name].model_copy(update=changed)
    lines = {line.split()[0]: line for line in implausible(sheet)}
    assert field in lines
    with pytest.raises(ReproError, match=rf"^{field} is .*; .*{expected}"):
        raise ReproError(lines[field])


def test_the_example_of_the_documents_is_plausible(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how_to" / "job.md").read_text(encoding="utf-8")
    path = tmp_path / "my_gpu.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    assert read_gpu_sheet(path) == _H100_PCIE.model_copy(
        update={"source": "NVIDIA H100 PCIe data sheet, 2023"}
    )


def _write(sheet: Gpu, folder: Path) -> Path:
    path = folder / "my_gpu.yaml"
    path.write_text(yaml.safe_dump(sheet.model_dump(mode="json", exclude_none=True)))
    return path


def test_the_command_prints_findings_and_fails(tmp_path: Path) -> None:
    good = CliRunner().invoke(app, ["gpu-spec", str(_write(_H100_PCIE, tmp_path))])
    assert good.exit_code == 0
    nearest = "nearest GPU in params/gpus.yaml: h800-sxm-80gb"
    assert good.stdout == f"H100-PCIe-80GB: plausible; {nearest}\n"
    wrong = _H100_PCIE.model_copy(update={"link_gbytes_per_s": 128.0, "nic_gbps": 50.0})
    bad = CliRunner().invoke(app, ["gpu-spec", str(_write(wrong, tmp_path))])
    assert bad.exit_code == 1
    fields = [line.split()[0] for line in bad.stdout.splitlines()]
    assert fields == ["link_gbytes_per_s", "nic_gbps"]


def test_no_job_is_estimated_with_an_implausible_sheet(tmp_path: Path) -> None:
    path = _write(_H100_PCIE, tmp_path)
    assert resolve(Job(model="llama3.1-8b", gpu=str(path))).device.peak_flops == 756e12
    wrong = _H100_PCIE.model_copy(update={"peak_flops": 1513e12, "nic_gbps": 50.0})
    _write(wrong, tmp_path)
    message = (
        r"my_gpu\.yaml: peak_flops is 1\.513e\+15; .*\(2 more: repro gpu-spec .*my_gpu\.yaml\)"
    )
    with pytest.raises(ReproError, match=message):
        resolve(Job(model="llama3.1-8b", gpu=str(path)))


def test_what_is_no_data_sheet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "my_gpu.yaml"
    with pytest.raises(ReproError, match="no such file; fix: give the path of a data sheet"):
        read_gpu_sheet(path)
    path.write_text("label: X\npeak: 1.0\n")
    with pytest.raises(ReproError, match=r"my_gpu\.yaml: peak: unknown key"):
        read_gpu_sheet(path)
