"""Plans of serving: those that fit, the front, the best within a latency, other memories."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from repro.catalog.job_inputs import read_hardware, read_model
from repro.catalog.systems.technology import MemoryKind, read_technology
from repro.cli import app
from repro.errors import ReproError
from repro.predict.explore.jobs.serving import (
    Service,
    best_plan,
    by_memory,
    operators,
    serving_plans,
)
from repro.predict.parameters import TRANSFER


@pytest.fixture(scope="module")
def asked() -> Service:
    return Service(read_model("llama3.1-8b"), read_hardware("h100-sxm-80gb"), 2, 512, 64)


@pytest.fixture(scope="module")
def plans(asked: Service) -> pd.DataFrame:
    return serving_plans(asked, ["bf16"])


def test_copies_and_groups_make_all_gpus(plans: pd.DataFrame) -> None:
    assert (plans.tp * plans.pp * plans.copies == 2).all()
    assert {(1, 1), (2, 1), (1, 2)} == set(zip(plans.tp, plans.pp, strict=True))


def test_no_plan_leaves_gpus_idle() -> None:
    of = Service(read_model("gpt-oss-120b"), read_hardware("h100-sxm-80gb"), 12, 512, 64)
    found = serving_plans(of, ["bf16"])
    groups = np.maximum(found.tp, found.ep) * found.pp
    assert (groups * found.copies == 12).all()


def test_nothing_beats_the_front_and_something_beats_the_rest(plans: pd.DataFrame) -> None:
    for plan in plans.itertuples():
        better = plans[
            (plans.output_token_s <= plan.output_token_s)
            & (plans.tokens_per_s_per_gpu >= plan.tokens_per_s_per_gpu)
        ]
        assert (len(better) == 1) == plan.best


def test_the_best_plan_keeps_its_latency(plans: pd.DataFrame) -> None:
    fast, any_ = best_plan(plans, token_ms=6.0), best_plan(plans)
    assert fast.output_token_s <= 6e-3 < any_.output_token_s
    assert fast.tokens_per_s_per_gpu < any_.tokens_per_s_per_gpu == plans.tokens_per_s_per_gpu.max()
    with pytest.raises(ReproError, match=r"output token of 0\.1 ms: the fastest plan takes"):
        best_plan(plans, token_ms=0.1)


def test_a_batch_that_memory_does_not_hold_waits(asked: Service) -> None:
    """4,096 more requests of 64 tokens wait for as long as writing them takes."""
    one, two = (
        serving_plans(asked, batch=batch).query("tp == 2 and pp == 1").iloc[0]
        for batch in (4096, 8192)
    )
    assert two.tokens_per_s_per_gpu == pytest.approx(one.tokens_per_s_per_gpu)
    longer_s = 4096 * 64 / (2 * one.tokens_per_s_per_gpu)
    assert two.first_token_s - one.first_token_s == pytest.approx(longer_s)


def test_operators_make_up_their_phase(asked: Service, plans: pd.DataFrame) -> None:
    plan = best_plan(plans)
    found = operators(asked, plan)
    assert found.groupby("phase").share_pct.sum().to_numpy() == pytest.approx([100, 100])
    prompts, token = found.groupby("phase", sort=False).time_s.sum()
    # Each of 64 tokens waits for its share of the prompts, whose passes write tokens too.
    assert prompts / 64 < plan.output_token_s < prompts / 64 + token
    assert set(found.bound) <= {"compute", "memory", "network", "launch"}


def test_a_faster_memory_shortens_tokens_more_than_prompts(
    asked: Service, plans: pd.DataFrame
) -> None:
    technology = read_technology()
    small = MemoryKind(name="small", gbytes_per_s=64, gb=1, places=12, source="made up")
    kinds = [*technology.memories, *technology.host_memories, small]
    found = by_memory(asked, plans[plans.batch == 8].iloc[0], kinds).set_index("memory")
    ranked = found.drop_duplicates("gbytes_per_s").sort_values("gbytes_per_s")
    assert (np.diff(ranked.output_token_s) < 0).all()
    slow, fast = found.loc["HBM2e"], found.loc["HBM4"]
    gained = slow.output_token_s / fast.output_token_s
    assert (
        1 < slow.first_token_s / fast.first_token_s < gained < fast.gbytes_per_s / slow.gbytes_per_s
    )
    assert not found.loc["small"].fits and found.loc["HBM3e"].fits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama3.1-8b", "--batch", "0"], "batch is 0; take 1 or more"),
        (["llama3.1-8b", "--input", "0"], "input_tokens is 0; take 1 or more"),
        (
            ["llama3.1-8b", "--gpus", "1", "--input", "2000000"],
            "context of 2000256 tokens: its cache",
        ),
        (["llama3.1-8b", "--gpu", "a100-sxm-80gb", "--precisions", "fp8"], "has no units for it"),
        (["llama3.1-8b", "--stack", "abacus"], "unknown serving software 'abacus'"),
        (["llama3.1-405b", "--gpus", "1"], "GB of weights on each H100-SXM-80GB"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve-estimate", *arguments])
    assert isinstance(result.exception, ReproError)
    assert message in str(result.exception) and "\n" not in str(result.exception)


def test_names_are_spelled_as_in_tables() -> None:
    spelled = (
        "--stack TRT-LLM llama3.3-70b --gpu H200",
        "--stack tensorrt-llm meta-llama/Llama-3.1-70B-Instruct --gpu h200-sxm-141gb",
    )
    first, second = (CliRunner().invoke(app, ["serve-estimate", *one.split()]) for one in spelled)
    assert first.exit_code == 0 and first.stdout == second.stdout


def test_costs_of_another_software_are_named_and_less_certain(asked: Service) -> None:
    """No table of SGLang was fitted: it has vLLM's costs, and wider intervals."""
    result = CliRunner().invoke(app, ["serve-estimate", "llama3.1-8b", "--stack", "sglang"])
    assert "costs of SGLang are those of vLLM (V1), with" in " ".join(result.stderr.split())
    own = Service(asked.model, read_hardware("h200"), 2, 512, 64, "vllm")
    known, borrowed = (serving_plans(one) for one in (own, replace(own, stack="sglang")))
    widths = [np.log(one.high_s / one.output_token_s)[0] for one in (known, borrowed)]
    assert widths[1] == pytest.approx(np.hypot(widths[0], TRANSFER))


def test_one_screen_says_what_is_best_and_why() -> None:
    arguments = ["serve-estimate", "llama3.1-8b", "--cluster", "dgx-a100", "--gpus", "1"]
    result = CliRunner().invoke(app, [*arguments, "--token-ms", "30"])
    assert result.exit_code == 0
    assert "on 1 x A100-SXM" in result.stdout and "(predicted)" in result.stdout
    assert "MLP down" in result.stdout and "memory" in result.stdout
    assert len(result.stdout.splitlines()) < 45
