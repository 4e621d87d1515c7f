"""The command line: bad input is one line and a non-zero exit."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from waiting import wait_until

from repro.cli import send_again
from repro.cli.judging import retime
from repro.errors import ReproError
from repro.extras import DISTRIBUTION
from repro.paths import ROOT
from repro.results import store

pytestmark = pytest.mark.slow

_REPRO = Path(sys.executable).with_name("repro")


def _repro(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([_REPRO, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("corpus", "dataset", "rnn"), "rnn"),
        (("claims", "--experiment", "fusion"), "fusion"),
        (("traffic", "gpt3-13b", "--plan", "tp=3"), "attention_heads 40"),
        (("retime", "missing.json"), "missing.json: no such file"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = _repro(*arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_what_does_not_fit_is_one_line_and_status_3() -> None:
    result = _repro("fits", "llama3.1-405b", "--gpus", "1")
    assert result.returncode == 3
    assert "gpus 1: Llama 3.1 405B takes" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not result.stdout


def test_without_microbenchmarks_no_trace_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "tid": 1, "ts": 0, "dur": 1}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [{**event, "args": {"Input Dims": [[4]]}}]}))
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    symptom, fix = (
        r"no microbenchmarks \(results: none yet.*\)",
        "; fix: dvc repro measure@operators",
    )
    with pytest.raises(ReproError, match=symptom + fix):
        retime(trace)


def test_an_interruption_says_that_the_command_resumes() -> None:
    command = [_REPRO, "validate", "data/published/collectives_nccl.csv"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    # Until its imports are done.
    wait_until(lambda: "scipy" in Path(f"/proc/{process.pid}/maps").read_text())
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert printed == "repro: interrupted; run the same command again to resume\n"
    assert process.returncode == 130


def test_an_interruption_in_a_callback_that_cannot_raise_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Collected:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", send_again)
    with pytest.raises(KeyboardInterrupt):
        Collected()
        time.sleep(60)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _repro("explore", "--no-show", "--port", str(port))
    assert result.returncode == 1
    message = f"repro: cannot listen on port {port} (Address already in use)"
    assert f"{message}; fix: choose another with --port" in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_names_every_capability() -> None:
    result = _repro("doctor")
    assert result.returncode == 0
    capabilities = (
        "emulated network",
        "computing",
        "memory",
        "disk",
        "GPUs",
        "NCCL",
        "NUMA",
        "NICs",
        "Slurm",
    )
    for what in (*capabilities, "protocol rdma", "protocol tcp"):
        assert what in result.stdout


def test_without_a_command_next_commands_are_printed() -> None:
    result = _repro()
    assert result.returncode == 0
    assert "repro claims" in result.stdout and "make repro" in result.stdout
    assert _repro("--version").stdout == f"repro {version(DISTRIBUTION)}\n"


def test_shells_can_complete_commands() -> None:
    environment = {**os.environ, "_REPRO_COMPLETE": "complete_bash", "COMP_WORDS": "repro cla"}
    result = subprocess.run(
        [_REPRO], env={**environment, "COMP_CWORD": "1"}, capture_output=True, text=True
    )
    assert result.stdout.split() == ["claims"]


def test_claims_as_json() -> None:
    claims = json.loads(_repro("claims", "--json").stdout)
    assert {claim["id"] for claim in claims} >= {"C001", "C003", "C017", "C072"}
    verdicts = {"reproduced", "same direction", "not reproduced", "not run", "input"}
    findings = [found for claim in claims for found in claim["findings"].values()]
    assert {found["verdict"] for found in findings} <= verdicts


def test_a_notebook_refuses_an_unknown_protocol_in_one_line(tmp_path: Path) -> None:
    papermill = Path(sys.executable).with_name("papermill")
    notebook = Path(__file__).parents[1] / "notebooks" / "weak_scaling.ipynb"
    command = [papermill, notebook, tmp_path / "out.ipynb"]
    result = subprocess.run(
        [*command, "-p", "protocol", "quic"], capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last == ("ReproError: unknown protocol 'quic'; choose from: rdma, ipoib, tcp, all")


def test_ctrl_c_while_modules_are_loaded_is_no_traceback(tmp_path: Path) -> None:
    interrupt = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "typer.py").write_text(interrupt)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", "repro", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
