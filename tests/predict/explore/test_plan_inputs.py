"""Commands that search plans answer for the model, GPU and network that were given."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from repro.catalog.systems.gpus import gpu
from repro.cli import app

_ARGUMENTS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear "
    "--untie-embeddings-and-output-weights --position-embedding-type rope --seq-length 8192 "
    "--padded-vocab-size 128256 --global-batch-size 64 --tensor-model-parallel-size 2"
)
_COMMANDS = {"what-if": ("--gpus", "16"), "fits": ("--gpus", "16"), "serve-estimate": ()}


def _answer(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.sh").write_text(_ARGUMENTS)
    return str(tmp_path / "train.sh")


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_model_of_arguments_has_the_answer_of_its_name(command: str, script: str) -> None:
    batch = () if command == "serve-estimate" else ("--global-batch", "64")
    named = _answer(command, "llama3.1-8b", *_COMMANDS[command], *batch)
    found = _answer(command, script, *_COMMANDS[command])
    answers = named.keys() - {"job"}
    assert answers and all(found[name] == named[name] for name in answers)
    assert found["job"]["model"] == "model of the arguments"
    # The batch is that of the script, and its plan is searched anew.
    if batch:
        assert "global_batch 64, from the arguments" in found["job"]["notes"]
        assert any(note.startswith("tp 2, zero 0 of the arg") for note in found["job"]["notes"])


def test_nics_of_ones_own_change_the_answer() -> None:
    asked = ("what-if", "llama3.1-70b", "--gpus", "64", "--global-batch", "64")
    slow, fast = (
        _answer(*asked, "--gpus-per-node", "8", "--nic", nic) for nic in ("1x10", "8x400")
    )
    assert slow["job"]["nic_gbps"] == 10 and fast["job"]["nic_gbps"] == 3200
    assert slow["plans"][0]["iteration_time_s"] > 1.5 * fast["plans"][0]["iteration_time_s"]
    # The maker's systems have these NICs.
    assert fast["plans"] == _answer(*asked)["plans"]


@pytest.mark.parametrize("command", ["what-if", "serve-estimate"])
def test_a_data_sheet_has_wider_intervals(command: str, tmp_path: Path) -> None:
    sheet = tmp_path / "mine.yaml"
    sheet.write_text(yaml.safe_dump(gpu("h100-sxm-80gb").model_dump(mode="json")))
    asked = (command, "llama3.1-8b", "--gpus", "8")
    listed, own = (
        _answer(*asked, "--gpu", name)["plans"][0] for name in ("h100-sxm-80gb", str(sheet))
    )
    widths = [np.log(plan["high_s"] / plan["low_s"]) / 2 for plan in (listed, own)]
    # 15 %, as for GPUs that a fit has not seen.
    assert np.sqrt(widths[1] ** 2 - widths[0] ** 2) == pytest.approx(0.15)


def test_a_cluster_replaces_the_gpu() -> None:
    found = _answer("fits", "llama3.1-8b", "--cluster", "dgx-a100", "--gpus", "8")
    # Eight NICs of 200 Gbit/s per node.
    assert found["job"]["gpu"].startswith("A100-SXM") and found["job"]["nic_gbps"] == 1600
    assert not any(note.startswith("GPU ") for note in found["job"]["notes"])


def test_what_was_assumed_is_named_apart_from_the_answer() -> None:
    result = CliRunner().invoke(app, ["fits", "llama3.1-8b", "--gpus", "8"])
    assert "assumed: sequence length 8192" in result.stderr and "assumed" not in result.stdout
    assert "GPU h100-sxm-80gb, as not given" in " ".join(result.stderr.split())
