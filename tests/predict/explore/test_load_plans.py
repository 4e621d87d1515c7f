"""Plans for a request rate: percentiles within limits, the fewest GPUs, and what is refused."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from repro.catalog.job_inputs import read_hardware, read_model
from repro.cli import app
from repro.errors import DoesNotFit, ReproError
from repro.predict.explore.jobs.load import Load, load_plans, load_text
from repro.predict.explore.jobs.serving import Service, serving_plans, with_costs


def _service(gpus: int = 8, model: str = "llama3.1-8b") -> Service:
    return Service(read_model(model), read_hardware("h100-sxm-80gb"), gpus, 1024, 128)


_LOAD = Load(60.0, token_ms=25.0, first_ms=150.0)


@pytest.fixture(scope="module")
def fewest() -> pd.DataFrame:
    return load_plans(_service(), _LOAD, fewest=True)


def test_no_smaller_number_of_gpus_keeps_the_limits(fewest: pd.DataFrame) -> None:
    (gpus,) = fewest.gpus.unique()
    assert gpus > 1
    assert (load_plans(_service(gpus), _LOAD).gpus == gpus).all()
    for fewer in range(1, gpus):
        with pytest.raises(ReproError, match=r"sustain less than|the fastest plan takes"):
            load_plans(_service(fewer), _LOAD)


def test_plans_keep_limits_and_are_ranked(fewest: pd.DataFrame) -> None:
    for plans in (fewest, load_plans(_service(8), _LOAD)):
        assert (plans.first_token_p90_s <= 0.15).all() and (plans.output_token_p90_s <= 0.025).all()
        assert plans.request_p90_s.is_monotonic_increasing
        assert plans.tokens_per_s_per_gpu.to_numpy() == pytest.approx(60 * 128 / plans.gpus)
        assert (plans.utilization < 1).all()
        rate = plans.utilization * plans.most_requests_per_s
        assert rate.to_numpy() == pytest.approx(60.0)
        for name in ("first_token", "output_token", "request"):
            assert (plans[f"{name}_p50_s"] < plans[f"{name}_p90_s"]).all()
            assert (plans[f"{name}_p90_s"] < plans[f"{name}_p99_s"]).all()
            best = plans.iloc[0]
            assert best[f"{name}_low_s"] < best[f"{name}_p90_s"] < best[f"{name}_high_s"]


def test_a_stricter_percentile_takes_more_gpus(fewest: pd.DataFrame) -> None:
    strict = Load(60.0, token_ms=25.0, first_ms=80.0, percentile=99)
    assert load_plans(_service(), strict, fewest=True).gpus[0] > fewest.gpus[0]


def test_what_gpus_sustain_is_the_limit_of_the_rate() -> None:
    """As many requests per second as batches that fill the memory have."""
    service = _service(1)
    full = serving_plans(service, batch=100_000).iloc[0]
    most = full.tokens_per_s_per_gpu / 128
    assert load_plans(service, Load(0.9 * most)).most_requests_per_s[0] == pytest.approx(most)
    with pytest.raises(ReproError, match=f"H100-SXM-80GB sustain less than {most:.3g} requests/s"):
        load_plans(service, Load(1.01 * most))
    with pytest.raises(ReproError, match=r"rate 20 requests/s: 1 x H100-SXM-80GB sustain"):
        load_plans(service, Load(20.0), batch=8)


def test_a_load_that_may_be_too_much_has_no_upper_end() -> None:
    service = _service(1)
    plans = load_plans(service, Load(27.0))
    assert plans.request_high_s.isna().all() and plans.request_low_s.notna().all()
    assert "overload" in load_text(service, Load(27.0), plans)


def test_copies_that_memory_does_not_hold_are_left_out() -> None:
    plans = load_plans(_service(model="llama3.1-70b"), Load(1.0), fewest=True)
    assert set(plans.gpus) == {2} and set(plans.tp * plans.pp) == {2}
    with pytest.raises(DoesNotFit, match="GB of weights on each"):
        load_plans(_service(1, "llama3.1-70b"), Load(1.0))


def test_tokens_cost_what_their_gpus_do(fewest: pd.DataFrame) -> None:
    """Two per GPU and hour, over 60 x 128 tokens per second of all GPUs."""
    cost = with_costs(fewest, 2.0).cost_per_million_tokens
    assert cost[0] == pytest.approx(2.0 * fewest.gpus[0] / (60 * 128 * 3600) * 1e6)
    assert with_costs(fewest, None) is fewest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "rate 0 requests/s: take more than 0"),
        (["--rate", "5", "--percentile", "95"], "percentile 95: take 50, 90 or 99"),
        (["--rate", "5", "--token-ms", "1"], "output token of 1 ms for 90 % of requests: the fast"),
        (["--rate", "5", "--output", "1"], "a request rate with 1 output token; take 2 or more"),
        (
            ["--rate", "5", "--gpus", "1", "--stack", "pytorch"],
            "serves batch by batch; fix: choose",
        ),
        (["--rate", "5", "--gpus", "0"], "gpus 0: take 1 or more"),
        (["--rate", "5", "--batch", "0"], "batch is 0; take 1 or more"),
        (["--gpu-hour-cost", "0"], "gpu-hour cost 0: take more than 0"),
    ],
)
def test_what_cannot_be_answered_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve-estimate", "llama3.1-8b", *arguments])
    assert isinstance(result.exception, ReproError)
    assert message in str(result.exception) and "\n" not in str(result.exception)


def test_one_screen_answers_a_rate() -> None:
    arguments = ["serve-estimate", "llama3.1-8b", "--rate", "20", "--gpu-hour-cost", "2"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0 and len(shown.stdout.splitlines()) < 45
    answer = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    load, job = answer["load"], answer["job"]
    assert (job["gpus"], job["requests_per_s"], job["percentile"]) == (load["gpus"], 20.0, 90)
    assert f"{load['cost_per_million_tokens']:.3g} per million output tokens" in shown.stdout
    assert f"{1e3 * load['request_p99_s']:.1f}" in shown.stdout
