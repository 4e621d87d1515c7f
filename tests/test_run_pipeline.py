"""Output and processes of `repro pipeline` while DVC runs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from repro import pipeline
from repro.errors import ReproError

pytestmark = pytest.mark.slow

_DVC = """#!/bin/sh
echo "$@" >> called
case "$*" in
*first_look)
  echo "Stage 'dump' didn't change, skipping"
  echo "Running stage 'first_look':"
  echo "> a command"
  sleep 0.1
  ;;
*repro)
  echo "Running stage 'measure@weak_scaling':"
  echo "Running stage 'site':"
  exit {status}
  ;;
esac
"""
_ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
_STAGES = {
    "dump": ["data/enwiki/dump.xml.bz2"],
    "first_look": ["results/first_look/breakdown.png"],
    "measure@weak_scaling": ["results/weak_scaling.nc"],
    "site": ["results/site"],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose DVC is a script."""
    profile = tmp_path / "pipeline.yaml"
    profile.write_text("# How thoroughly.\nprofile: default\n")
    monkeypatch.setattr(pipeline, "ROOT", tmp_path)
    monkeypatch.setattr(pipeline, "_PROFILE", profile)
    monkeypatch.setattr(pipeline, "_TIMES", tmp_path / "stage_times.json")
    monkeypatch.setattr(pipeline, "_KEPT_TIMES", tmp_path / "kept_times.json")
    monkeypatch.setattr(pipeline, "_SHORTEST_SHOWN_S", 0.0)
    monkeypatch.setattr(pipeline, "_stages", lambda: _STAGES)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def _install(project: Path, status: int = 0) -> None:
    script = project / "dvc"
    script.write_text(_DVC.format(status=status))
    script.chmod(0o700)


def _printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Printed output, with every duration in seconds as 0 s."""
    return re.sub(r"\b\d+ s\b", "0 s", capsys.readouterr().out)


def test_progress_remaining_time_and_outputs_are_printed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    first = _printed(capsys)
    assert "[2/4] first_look: 0 s elapsed, remaining time unknown: 3 stages have never run" in first
    assert "first_look took 0 s; see results/first_look/breakdown.png\n" in first
    assert "measure@weak_scaling took 0 s; see results/weak_scaling.nc" in first
    assert "> a command" in first
    (project / "stage_times.json").write_text(
        json.dumps(
            {
                "default": {"first_look": 100.0, "measure@weak_scaling": 60.0, "site": 200.0},
                "ci": {"site": 1.0},
            }
        )
    )
    assert pipeline.run_pipeline(None) == 0
    second = _printed(capsys)
    assert "[2/4] first_look: 0 s elapsed, about 6.0 min left" in second
    assert "about 3.3 min left" in second
    times = json.loads((project / "stage_times.json").read_text())
    assert times["ci"] == {"site": 1.0}
    assert times["default"]["first_look"] < 100.0
    # `first_look` runs first in any order of the file.
    called = (project / "called").read_text().splitlines()
    assert called == 2 * ["--wait-for-lock repro first_look", "--wait-for-lock repro"]


@pytest.mark.parametrize("content", [b"", b"schema: '2.0'\nsta\xff", b"stages: {", b"[]"])
def test_a_damaged_record_of_stages_is_removed(
    project: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    """DVC does not write it atomically, and would refuse it."""
    _install(project)
    lock = project / "dvc.lock"
    lock.write_bytes(content)
    assert pipeline.run_pipeline(None) == 0
    assert not lock.exists() and "dvc.lock was damaged" in _printed(capsys)
    lock.write_text("schema: '2.0'\nstages: {}\n")
    assert pipeline.run_pipeline(None) == 0
    assert lock.exists() and "damaged" not in _printed(capsys)


def test_a_first_run_estimates_its_time_from_the_reference_run(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(project)
    kept = {
        "default": {
            "dump": 60.0,
            "first_look": 120.0,
            "measure@weak_scaling": 30.0,
            "site": 240.0,
        }
    }
    (project / "kept_times.json").write_text(json.dumps(kept))
    # This machine took 180 s for a stage that took the reference run 60 s.
    (project / "stage_times.json").write_text(json.dumps({"default": {"dump": 180.0}}))
    assert pipeline.run_pipeline(None) == 0
    printed = _printed(capsys)
    slower = (60 + 180) / (60 + 60)
    estimate = f"about {slower * (120 + 30 + 240) / 60:.1f} min left"
    assert f"{estimate}, estimated from the reference run" in printed
    # Both runs have the first look and the experiment now; they took no time here.
    last = (60 + 180) / (60 + 60 + 120 + 30) * 240
    assert f"site: 0 s elapsed, about {last / 60:.1f} min left, estimated" in printed


def test_stage_times_are_kept_with_a_reference_run(project: Path) -> None:
    with pytest.raises(ReproError, match="no stage has run here; fix: make repro"):
        pipeline.keep_times()
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    kept = json.loads(pipeline.keep_times().read_text())["default"]
    assert kept.keys() == {"first_look", "measure@weak_scaling", "site"}


def test_a_profile_is_stored_and_a_failure_is_passed_on(project: Path) -> None:
    _install(project, status=7)
    assert pipeline.run_pipeline("ci") == 7
    text = (project / "pipeline.yaml").read_text()
    assert text == "# How thoroughly.\nprofile: ci\n"
    # The time of a failed stage is not kept.
    times = json.loads((project / "stage_times.json").read_text())["ci"]
    assert times.keys() == {"first_look", "measure@weak_scaling"}


def test_an_unknown_profile_is_not_kept(project: Path) -> None:
    with pytest.raises(ReproError, match="unknown profile 'thorogh'; choose from: default, thoro"):
        pipeline.run_pipeline("thorogh")
    assert "profile: default" in (project / "pipeline.yaml").read_text()


_ENDLESS = "#!/bin/sh\nsh -c 'echo $$ > stage; exec sleep 600'\n"


def _begin(project: Path, ignored: signal.Signals | None = None) -> "subprocess.Popen[bytes]":
    """Start a pipeline with an endless stage, which writes its process id."""
    script = project / "dvc"
    script.write_text(_ENDLESS)
    script.chmod(0o700)
    code = (
        "from pathlib import Path; from repro import pipeline as p;"
        "p._stages = lambda: {'measure@weak_scaling': ['weak_scaling.nc']};"
        "p.ROOT, p._TIMES = Path.cwd(), Path('times'); p.run_pipeline(None)"
    )

    def dispose() -> None:
        # The process that runs the tests may ignore some.
        for one in _ENDING:
            signal.signal(one, signal.SIG_IGN if one == ignored else signal.SIG_DFL)

    started = subprocess.Popen([sys.executable, "-c", code], cwd=project, preexec_fn=dispose)
    wait_until(lambda: (project / "stage").exists() and (project / "stage").read_text())
    return started


def test_a_signal_while_dvc_starts_terminates_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = subprocess.Popen

    def late(*arguments: Any, **options: Any) -> "subprocess.Popen[Any]":
        started.append(start(*arguments, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    (project / "dvc").write_text(_ENDLESS)
    (project / "dvc").chmod(0o700)
    monkeypatch.setattr(subprocess, "Popen", late)
    before = {one: signal.getsignal(one) for one in _ENDING}
    try:
        assert pipeline.run_pipeline(None) == 130
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert [one.returncode for one in started] == [-signal.SIGTERM]


def _stage_runs(project: Path) -> bool:
    return _runs(project / "stage")


def _runs(note: Path) -> bool:
    """Whether the process that wrote its id is alive."""
    return os.path.exists(f"/proc/{int(note.read_text().split()[0])}")


@pytest.mark.parametrize("number", _ENDING)
def test_a_signal_leaves_nothing_running(project: Path, number: signal.Signals) -> None:
    started = _begin(project)
    started.send_signal(number)
    assert started.wait(60) is not None
    wait_until(lambda: not _stage_runs(project))


def test_a_kill_ends_a_shells_background_job_too(project: Path) -> None:
    started = _begin(project, ignored=signal.SIGINT)
    started.terminate()
    assert started.wait(60) is not None
    wait_until(lambda: not _stage_runs(project))


def test_nohup_outlives_its_terminal(project: Path) -> None:
    started = _begin(project, ignored=signal.SIGHUP)
    started.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(1)
    assert _stage_runs(project)
    started.terminate()
    started.wait(60)
