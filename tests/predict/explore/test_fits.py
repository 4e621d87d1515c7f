"""What fits: limits that hold, policies by what they cost, and what would fit instead."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from repro.catalog.job_inputs import read_hardware, read_model
from repro.catalog.systems.gpus import gpu
from repro.cli import app
from repro.errors import DoesNotFit, ReproError
from repro.predict.explore.jobs.fits import what_fits
from repro.predict.explore.jobs.fused_plans import Training, best_plans, fitting_plans

_H100 = "h100-sxm-80gb"
_JOB = (read_model("llama3.1-70b"), read_hardware(_H100), 32, 64)


def test_policies_hold_more_the_more_they_cost() -> None:
    found = what_fits(*_JOB)
    assert found.iteration_time_s.is_monotonic_increasing
    none, full = found.loc["none", 1], found.loc["full", 1]
    assert none.iteration_time_s < full.iteration_time_s
    assert none.micro_batch < full.micro_batch and none.context < full.context
    assert (found.memory_bytes <= gpu(_H100).memory_bytes).all()


def test_twice_the_limit_does_not_fit() -> None:
    found = what_fits(*_JOB)
    training, where = Training(_JOB[0], *_JOB[2:], ("bf16",)), gpu(_H100)
    size = 2 * int(found.micro_batch.max())
    with pytest.raises(DoesNotFit):
        larger = replace(training, global_batch=size)
        fitting_plans(larger, where, zero=(1, 3), micro_batches=(size,))
    shape = training.model.shape.model_copy(update={"seq": 2 * int(found.context.max())})
    longer = replace(training, model=replace(_JOB[0], shape=shape))
    with pytest.raises(DoesNotFit):
        fitting_plans(longer, where, zero=(1, 3), micro_batches=(1,))


def test_what_fits_nowhere_says_what_would() -> None:
    asked = (read_model("llama3.1-405b"), read_hardware(_H100))
    with pytest.raises(ReproError) as raised:
        what_fits(*asked, 8, 64)
    assert str(raised.value).startswith("gpus 8: Llama 3.1 405B takes ")
    wanted = int(str(raised.value).split("; ")[1].split()[0])
    assert not what_fits(*asked, wanted, 64 * wanted // 8).empty
    with pytest.raises(DoesNotFit):
        what_fits(*asked, wanted // 2, 64 * wanted // 16)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gpus": 0}, "gpus 0: take 1 or more"),
        ({"global_batch": -4}, "global_batch -4: take 1 or more"),
        (
            {"where": read_hardware("a100-sxm-80gb"), "precisions": ["fp8"]},
            "fp8: A100-SXM-80GB has no units",
        ),
    ],
)
def test_what_cannot_be_asked_is_named(changed: dict[str, object], message: str) -> None:
    asked = {"where": read_hardware(_H100), "gpus": 8, "global_batch": 64, **changed}
    with pytest.raises(ReproError, match=message):
        best_plans(read_model("llama3.1-8b"), **asked)  # type: ignore[arg-type]


def test_a_gpu_without_fp8_is_asked_for_half_precision() -> None:
    best = best_plans(read_model("llama3.1-8b"), read_hardware("a100-sxm-80gb"), 8, 64, count=20)
    assert set(best["dtype"]) == {"bf16"}


def test_the_command_line_prints_policies_and_the_largest_model() -> None:
    result = CliRunner().invoke(app, ["fits", "qwen3-8b", "--gpus", "8", "--global-batch", "16"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["recompute", "zero", "micro_batch", "context"]
    assert lines[-1].startswith("largest model that fits: ")
