"""Plans of open models: all of them can run, fit and are ranked."""

import numpy as np
import pytest
from typer.testing import CliRunner

from repro.catalog.job_inputs import read_hardware, read_model
from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.cli import app
from repro.errors import ReproError
from repro.predict.explore.jobs.fused_plans import SPLIT, best_plans, plan_table

_H100 = "h100-sxm-80gb"
_JOB = (read_model("llama3.1-8b"), read_hardware(_H100), 8, 128)


@pytest.mark.parametrize(
    ("model", "device", "gpus", "batch"),
    [("llama3.1-70b", _H100, 64, 128), ("qwen3-30b-a3b", "gb200", 32, 1024)],
)
def test_plans_split_the_job_and_fit(model: str, device: str, gpus: int, batch: int) -> None:
    plans = best_plans(read_model(model), read_hardware(device), gpus, batch, count=50)
    shape = open_model(model).shape
    assert (plans.tp * plans.pp * plans.cp * plans.dp == gpus).all()
    assert (shape.heads % plans.tp == 0).all()
    assert ((plans.tp * plans.cp * plans.dp) % plans.ep == 0).all()
    assert (batch % (plans.micro_batch * plans.dp) == 0).all()
    assert (plans.memory_bytes <= gpu(device).memory_bytes).all()
    assert plans.iteration_time_s.is_monotonic_increasing
    assert (plans.low_s < plans.iteration_time_s).all()
    assert (plans.iteration_time_s < plans.high_s).all()
    assert ((plans.mfu > 0) & (plans.mfu < 1)).all()
    phases = [name for name in plans.columns if name.endswith("_s") and f"{name[:-2]}" != "low"]
    parts = plans[phases].drop(columns=["iteration_time_s", "high_s", "low_s"], errors="ignore")
    assert parts.sum(axis=1).to_numpy() == pytest.approx(plans.iteration_time_s.to_numpy())


def test_a_precision_with_units_of_its_own_is_faster() -> None:
    half, eighth = (
        best_plans(*_JOB, precisions=[name], count=1).iteration_time_s[0]
        for name in ("bf16", "fp8")
    )
    assert eighth < half
    best = best_plans(*_JOB, count=1)
    assert best["dtype"][0] == "fp8" and best.iteration_time_s[0] == eighth


def test_the_table_has_a_line_for_each_plan() -> None:
    plans = best_plans(*_JOB, count=4)
    lines = plan_table(plans).splitlines()
    assert len(lines) == 5 and "limit" in lines[0]
    assert np.isclose(float(lines[1].split()[9]), plans.iteration_time_s[0], rtol=0.01)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "llama9"}, "unknown model 'llama9'"),
        ({"device": "h900"}, "unknown GPU 'h900'"),
        ({"precisions": ["int4"]}, "unknown precision 'int4'; choose from: bf16, fp8, mxfp8"),
        ({"gpus": 7}, "gpus 7: no split suits the 32 layers .* multiple of 7"),
        (
            {"model": "llama3.1-405b"},
            "Llama 3.1 405B takes .* H100-SXM-80GB has 85 GB; .* GPUs hold it, and 8 hold",
        ),
    ],
)
def test_what_cannot_be_is_named(changed: dict[str, object], message: str) -> None:
    asked = {"model": "llama3.1-8b", "device": _H100, "gpus": 8, "precisions": None, **changed}
    with pytest.raises(ReproError, match=message):
        where = read_hardware(str(asked["device"]))
        best_plans(
            read_model(str(asked["model"])),
            where,
            asked["gpus"],  # type: ignore[arg-type]
            128,
            precisions=asked["precisions"],  # type: ignore[arg-type]
        )


def test_the_command_line_prints_them() -> None:
    asked = ["what-if", "qwen3-8b", "--gpus", "8", "--global-batch", "64"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split()[:3] == ["dtype", "tp", "pp"]


def test_who_states_how_even_experts_are_gets_the_narrower_interval() -> None:
    asked = (read_model("qwen3-30b-a3b"), read_hardware(_H100), 64, 512)
    plans = {
        stated: best_plans(*asked, expert_imbalance=stated, count=1).iloc[0]
        for stated in (None, 1.0, 1.5)
    }
    unsaid, even, uneven = plans.values()
    assert unsaid.iteration_time_s == even.iteration_time_s < uneven.iteration_time_s
    assert unsaid.high_s > even.high_s
    assert uneven.iteration_time_s < 1.5 * even.iteration_time_s


def test_zero_bubble_shortens_pipelines_only() -> None:
    asked = (read_model("llama3.1-70b"), read_hardware(_H100), 64, 32)
    plain, zero = (
        best_plans(*asked, zero_bubble=stated, count=10**6).set_index([*SPLIT])
        for stated in (False, True)
    )
    assert (zero.index.get_level_values("vpp") == 1).all() and len(zero) < len(plain)
    saved = plain.bubble_s.reindex(zero.index) - zero.bubble_s
    deep = zero.index.get_level_values("pp") > 1
    assert (saved[deep] > 0).all() and (saved[~deep] == 0).all()
