"""Documents name every field of an estimate's JSON and every option, and no other."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from repro.catalog.jobs import Job, resolve
from repro.cli import app
from repro.paths import ROOT
from repro.predict.explore.jobs.estimate import estimate
from repro.predict.explore.jobs.estimate_report import report_json
from repro.predict.explore.jobs.explain import explain

_PAGE = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
_HOW_TO = (ROOT / "docs" / "how_to" / "job.md").read_text(encoding="utf-8")


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Names of fields; `[]` is any entry of a list. An object is named by its fields."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}".lstrip("."))
        return
    yield path
    if isinstance(value, list):
        for inner in value:
            if isinstance(inner, dict):
                yield from _paths(inner, f"{path}[]")


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """An estimate with every list filled: fixes, networks and explanations."""
    job = resolve(Job(model="llama3.1-70b", gpu="h100-sxm-80gb", gpus=64, tp=8, global_batch=64))
    one = estimate([job])[0]
    found = report_json(one, explain(one, f"{1.3 * one.iteration_time_s}s"))
    assert found["memory"]["fixes"] and found["networks"] and found["measured"]["explanations"]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_the_page_names_every_field_and_no_other(report: dict[str, Any]) -> None:
    named = re.findall(r"^\| `([a-z_.\[\]]+)` \|", _PAGE, re.M)
    assert len(named) == len(set(named))
    assert set(named) == set(_paths(report))


def test_phases_add_up_and_mfu_is_of_the_peak(report: dict[str, Any]) -> None:
    assert sum(report["phases_s"].values()) == pytest.approx(report["iteration_time_s"]["expected"])
    assert report["mfu"] == pytest.approx(report["tflops_per_gpu"] / report["peak_tflops"])
    # Of the data sheet: 989.4 TFLOP/s, dense.
    assert report["peak_tflops"] == 989.4


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["llama3.1-8b", "--tp", "8"], 0),
        (["llama3.1-70b", "--tp", "7"], 1),
        (["llama3.1-70b", "--tensor", "8"], 2),
        # 16 bytes for each of 70 billion parameters on 8 GPUs are 140 GB per GPU.
        (["llama3.1-70b", "--tp", "8", "--zero", "0"], 3),
    ],
)
def test_exit_statuses_are_those_of_the_page(arguments: list[str], status: int) -> None:
    assert re.search(rf"^\| {status} \|", _PAGE, re.M)
    command = ["estimate", *arguments, "--gpu", "h100", "--gpus", "8", "--json"]
    result = CliRunner().invoke(app, command)
    # `main` prints errors that the user can fix, and exits with status 1.
    assert result.exit_code == status
    if status in (0, 3):
        verdict = json.loads(result.stdout)["memory"]["verdict"]
        assert verdict == {0: "fits", 3: "does_not_fit"}[status]


def test_the_how_to_names_every_option_of_the_command_and_no_other() -> None:
    command = get_command(app).commands["estimate"]  # type: ignore[attr-defined]
    options = {option.opts[0] for option in command.params if option.opts[0].startswith("--")}
    section = _HOW_TO.split("\n## ")[1]
    assert section.startswith("Your job")
    table = re.findall(r"^\| (`--.*?) \|", section, re.M)
    named = {name for row in table for name in re.findall(r"--[a-z-]+", row)}
    assert named | {"--json"} == options - {"--help"} | {"--json"}
    assert "`--json`" in section
