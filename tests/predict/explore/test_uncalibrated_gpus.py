"""GPUs without runs in the calibration: wider intervals, and the report says so."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from repro.catalog.jobs import Job, resolve
from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.predict.explore.jobs.estimate import JobEstimate, estimate
from repro.predict.explore.jobs.estimate_report import report_json, report_text
from repro.predict.fused.parameters import OTHER_MAKER
from repro.predict.parameters import TRANSFER


def _estimate(name: str) -> JobEstimate:
    return estimate([resolve(Job(model="llama3.1-8b", gpu=name, gpus=8, tp=8, seq=4096))])[0]


@pytest.mark.parametrize(
    ("name", "calibrated"),
    [
        ("a100-sxm-80gb", True),
        ("h100-sxm-80gb", True),
        ("h800", True),
        ("gb300", True),
        ("l40s", False),
        ("v100-sxm2-16gb", False),
        ("RTX PRO 6000", False),
        ("mi300x", False),
        ("mi355x", False),
    ],
)
def test_a_generation_without_runs_is_not_calibrated(name: str, calibrated: bool) -> None:
    one = _estimate(name)
    assert one.calibrated is calibrated
    assert report_json(one)["job"]["calibrated"] is calibrated
    said = f"not calibrated: no runs of generation {one.job.device.generation}, wider interval"
    assert (said in report_text(one)) is not calibrated


@pytest.mark.parametrize(
    ("name", "added"),
    [("h800", 0.0), ("l40s", TRANSFER), ("RTX PRO 6000", TRANSFER), ("mi325x", OTHER_MAKER)],
)
def test_intervals_widen_by_what_other_gpus_were_off(name: str, added: float) -> None:
    measured, one = _estimate("h100-sxm-80gb").half_width, _estimate(name).half_width
    assert one == pytest.approx(np.hypot(measured, added))


def test_a_sheet_of_ones_own_is_not_calibrated_even_with_catalogued_values(tmp_path: Path) -> None:
    path = tmp_path / "my_gpu.yaml"
    path.write_text(yaml.safe_dump(gpu("h100-sxm-80gb").model_dump(mode="json")))
    mine, known = _estimate(str(path)), _estimate("h100-sxm-80gb")
    assert mine.iteration_time_s == known.iteration_time_s
    assert not mine.calibrated and known.calibrated
    assert mine.half_width == pytest.approx(np.hypot(known.half_width, TRANSFER))
    assert "data sheet of your own (not calibrated, wider interval)" in report_text(mine)


def test_export_variants_are_slower_only_where_they_are_cut() -> None:
    h100, h800, h20 = (_estimate(name) for name in ("h100-sxm-80gb", "h800", "h20"))
    # NVLink at 200 instead of 450 GB/s, and nothing else.
    assert h800.phases_s["products"] == h100.phases_s["products"]
    assert h800.phases_s["tensor_parallel"] > 1.5 * h100.phases_s["tensor_parallel"]
    # 148 instead of 989 TFLOP/s.
    ratio = h20.phases_s["products"] / h100.phases_s["products"]
    assert ratio == pytest.approx(989.4 / 148, rel=0.15)


@pytest.mark.parametrize(
    ("name", "per_node", "joined"),
    [
        ("h100-sxm-80gb", 4, 4),
        ("h200_nvl", 8, 4),
        ("GH200", 1, 1),
        ("gb200", 4, 72),
    ],
)
def test_links_join_a_node_a_bridge_or_a_rack(name: str, per_node: int, joined: int) -> None:
    job = resolve(Job(model="llama3.1-8b", gpu=name, gpus=16, gpus_per_node=per_node))
    assert job.device.domain_gpus == joined
    assert job.nic_gbps == per_node * gpu(find_gpu_name(name)).nic_gbps
