"""Commands print the JSON fields that docs/reference/json_tables.md names, and no others."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from made_up_operators import made_up_operators
from typer.testing import CliRunner

from repro.claims.published import documented_claims
from repro.claims.reference import compare, judge_reference, keep_run
from repro.claims.verdicts import judge
from repro.cli import app
from repro.observe.environment import provenance
from repro.paths import ROOT
from repro.results import reference, store

pytestmark = pytest.mark.slow

_PAGE = (ROOT / "docs" / "reference" / "json_tables.md").read_text(encoding="utf-8")
_LOG = ROOT / "tests" / "logs" / "samples" / "recent_all_reduce.txt"
_PUBLISHED = ROOT / "data" / "published" / "collectives_nccl.csv"
# Lists that may be empty on a machine or in a claim, whose entries are values.
_VALUES = ("connections[]", "[].findings.cluster.interval[]")


def _documented(command: str) -> set[str]:
    """Return the fields in the first column of a command's table."""
    section = re.split(rf"^## {command}$", _PAGE, flags=re.M)[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.M)
    return {field for row in rows for field in re.findall(r"`([^`]+)`", row)}


def _fields(answer: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every value."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            yield from _fields(value, f"{path}.{name}" if path else name)
    elif isinstance(answer, list):
        for value in answer:
            yield from _fields(value, f"{path}[]")
    else:
        yield path


def _answer(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "questions",
    [
        ("what-if llama3.1-8b --gpus 8 --global-batch 64",),
        ("fits llama3.1-8b --gpus 8 --global-batch 64",),
        (
            "serve-estimate mixtral-8x7b --gpus 4 --gpu-hour-cost 2",
            "serve-estimate llama3.1-8b --rate 5 --gpu-hour-cost 2",
        ),
        ("traffic gpt2-large --plan tp=2,pp=2,dp=2,micro_batches=8",),
        ("busbw dgx-h100 --size 64MiB", f"busbw dgx-h100 '{_LOG}'"),
        (f"validate '{_PUBLISHED}'",),
        ("claims --reference",),
        ("doctor",),
    ],
    ids=lambda questions: questions[0].split()[0],
)
def test_a_commands_fields_are_documented(questions: tuple[str, ...]) -> None:
    found = {one for text in questions for one in _fields(_answer(*shlex.split(text)))}
    command = questions[0].split()[0]
    # An interval that is missing is null.
    assert found - {one.removesuffix("[]") for one in _documented(command)} <= _documented(command)
    assert _documented(command) - found <= set(_VALUES)


def test_fields_of_a_trace_are_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "tid": 1, "ts": 0, "dur": 1}
    arguments = {"Input Dims": [[64], [64]], "Input type": ["float", "float"]}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [{**event, "args": arguments}]}))
    monkeypatch.setattr(store, "read_result", lambda name: made_up_operators())
    monkeypatch.setattr(store, "has_runs", lambda results: True)
    assert set(_fields(_answer("retime", str(trace)))) == _documented("retime")


def test_fields_of_a_comparison_are_documented(
    made_up_results: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = made_up_results.assign_attrs(
        title="A made-up run", profile="default", provenance=provenance({})
    )
    results = {"weak_scaling": described}
    keep_run(results, judge(documented_claims(), results), tmp_path)
    for function in (reference.read_reference, judge_reference, compare):
        monkeypatch.setattr(function, "__defaults__", (tmp_path,))
    monkeypatch.setattr(store, "read_experiments", lambda: results)
    found = {*_fields(_answer("compare")), *_fields(_answer("compare", "--all"))}
    assert found == _documented("compare")


def test_every_command_that_prints_an_answer_is_documented() -> None:
    """Others write files, and print their paths, or have a page of their own."""
    writing = {"figures", "site", "reference", "explore", "machine", "compute", "measure", "gpu"}
    writing |= {"first-look", "pipeline", "calibrate", "gpu-spec"}
    commands = {
        one.name or (one.callback.__name__ if one.callback else "")
        for group in (app, *(part.typer_instance for part in app.registered_groups))
        if group is not None
        for one in group.registered_commands
    }
    corpus = {"dump", "extract", "tokenizer", "dataset", "stats"}
    documented = set(re.findall(r"^## (\S+)$", _PAGE, flags=re.M))
    assert commands - writing - corpus - {"estimate", "log"} == documented


@pytest.mark.parametrize("command", ["what-if", "fits", "serve-estimate"])
def test_what_does_not_fit_has_a_status_of_its_own(command: str) -> None:
    result = CliRunner().invoke(app, [command, "llama3.1-405b", "--gpus", "1"])
    assert getattr(result.exception, "exit_status", None) == 3
    assert getattr(CliRunner().invoke(app, [command, "llama9"]).exception, "exit_status", None) == 1
