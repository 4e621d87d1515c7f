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

# The background stages write their process id, and take longer.
_DVC = """#!/bin/sh
echo "$@" >> called
case "$*" in
*losses*)
  echo $$ > background
  sleep {background}
  echo over >> background
  exit 1
  ;;
*first_look)
  echo "Stage 'dump' didn't change, skipping"
  echo "Running stage 'first_look':"
  echo "> a command"
  sleep {sleep}
  ;;
*experiment*)
  echo "Running stage 'experiment@weak_scaling':"
  echo "$REPRO_AHEAD" > followed
  ;;
*repro)
  echo "Running stage 'site':"
  ;;
esac
"""
# The measuring process; it ends after the notebooks.
_PREMEASURE = """
echo "$@" > measured
echo $$ > measures
echo "Measuring weak_scaling"
sleep 0.3
exit {status}
"""
_THREE = """
stages:
  first: {cmd: cp one a, deps: [one], outs: [a]}
  second: {cmd: cp a b, deps: [a], outs: [b]}
  third: {cmd: cp two c, deps: [two], outs: [c]}
"""
_ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
_STAGES = {
    "dump": ["data/enwiki/dump.xml.bz2"],
    "first_look": ["results/first_look/breakdown.png"],
    "experiment@weak_scaling": ["results/weak_scaling.nc"],
    "losses": ["results/losses.nc"],
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
    monkeypatch.setattr(pipeline, "_changed", lambda stages: stages)
    monkeypatch.setattr(pipeline, "_PREMEASURE", ("sh", str(tmp_path / "premeasure")))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def _install(project: Path, status: int = 0, background: float = 0.0) -> None:
    script = project / "dvc"
    script.write_text(_DVC.format(sleep=0.1, background=background))
    script.chmod(0o700)
    (project / "premeasure").write_text(_PREMEASURE.format(status=status))


def _printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Printed output, with every duration in seconds as 0 s."""
    return re.sub(r"\b\d+ s\b", "0 s", capsys.readouterr().out)


def test_progress_remaining_time_and_outputs_are_printed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    first = _printed(capsys)
    assert "[2/5] first_look: 0 s elapsed, remaining time unknown: 3 stages have never run" in first
    assert "in the background: notebooks, losses, predictions, validation" in first
    assert "first_look took 0 s; see results/first_look/breakdown.png\n" in first
    # The outputs of a premeasured stage are named when its notebook is done.
    assert "experiment@weak_scaling took 0 s\n" in first
    assert "experiment@weak_scaling: see results/weak_scaling.nc" in first
    assert "> a command" in first
    (project / "stage_times.json").write_text(
        json.dumps(
            {
                "default": {"first_look": 100.0, "experiment@weak_scaling": 60.0, "site": 200.0},
                "ci": {"site": 1.0},
            }
        )
    )
    assert pipeline.run_pipeline(None) == 0
    second = _printed(capsys)
    assert "[2/5] first_look: 0 s elapsed, about 6.0 min left" in second
    assert "about 3.3 min left" in second
    times = json.loads((project / "stage_times.json").read_text())
    assert times["ci"] == {"site": 1.0}
    assert times["default"]["first_look"] < 100.0
    # `first_look` runs first in any order of the file.
    assert _called(project) == 2 * [
        "first_look",
        "notebooks resolve",
        "--single-item experiment@weak_scaling",
        "",
    ]


def test_notebooks_wait_for_the_measuring_process(project: Path) -> None:
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    assert (project / "measured").read_text() == "default weak_scaling\n"
    assert (project / "followed").read_text() == (project / "measures").read_text()


def test_unchanged_stages_are_not_measured(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_changed", lambda stages: [])
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    assert not (project / "measured").exists()
    assert _called(project) == ["first_look", "notebooks resolve", ""]


def _called(project: Path, background: bool = False) -> list[str]:
    """Arguments of DVC's calls, in the background or the foreground."""
    called = [line.partition("repro")[2] for line in (project / "called").read_text().splitlines()]
    return [line.strip() for line in called if ("losses" in line) == background]


def test_background_stages_are_waited_for_and_may_fail(project: Path) -> None:
    _install(project, background=0.5)
    assert pipeline.run_pipeline(None) == 0
    assert _called(project, background=True) == ["--single-item losses predictions validation"]
    assert (project / "background").read_text().splitlines()[1] == "over"


def test_background_stages_end_when_the_measuring_process_fails(project: Path) -> None:
    _install(project, status=7, background=600)
    assert pipeline.run_pipeline(None) == 7
    assert not (project / "background").exists() or not _runs(project / "background")


def test_a_cpu_quota_is_left_to_timed_stages(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "has_cpu_quota", lambda: True)
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    assert (project / "measured").exists()
    assert _called(project, background=True) == []
    assert _called(project) == ["first_look", "notebooks resolve", ""]
    # Stages that do not run in the background count.
    assert "remaining time unknown: 4 stages have never run" in capsys.readouterr().out


def test_a_first_run_estimates_its_time_from_the_reference_run(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(project)
    kept = {
        "default": {
            "dump": 60.0,
            "first_look": 120.0,
            "experiment@weak_scaling": 30.0,
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
    assert kept.keys() == {"first_look", "experiment@weak_scaling", "site"}


def test_a_profile_is_stored_and_a_failure_is_passed_on(project: Path) -> None:
    _install(project, status=7)
    assert pipeline.run_pipeline("ci") == 7
    text = (project / "pipeline.yaml").read_text()
    assert text == "# How thoroughly.\nprofile: ci\n"
    # The time of a failed stage is not kept.
    times = json.loads((project / "stage_times.json").read_text())["ci"]
    assert times.keys() == {"first_look"}


def test_an_unknown_profile_is_not_kept(project: Path) -> None:
    with pytest.raises(ReproError, match="unknown profile 'thorogh'; choose from: default, thoro"):
        pipeline.run_pipeline("thorogh")
    assert "profile: default" in (project / "pipeline.yaml").read_text()


_ENDLESS = "#!/bin/sh\nsh -c 'echo $$ > stage; exec sleep 600'\n"
_ENDLESS_BACKGROUND = """#!/bin/sh
case "$*" in
*losses*) sh -c 'echo $$ > stage; exec sleep 600' ;;
esac
"""


def _begin(
    project: Path, ignored: signal.Signals | None = None, dvc: str = _ENDLESS, timed: int = 0
) -> "subprocess.Popen[bytes]":
    """Start a pipeline with an endless stage, which writes its process id."""
    script = project / "dvc"
    script.write_text(dvc)
    script.chmod(0o700)
    code = (
        "from pathlib import Path; from repro import pipeline as p;"
        "p._stages = lambda: {'experiment@weak_scaling': ['weak_scaling.nc']};"
        f"p._changed, p._PREMEASURE = list, ('sh', '-c', 'sleep {timed}');"
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


@pytest.mark.parametrize(
    ("timed", "number"), [(0, signal.SIGTERM), (600, signal.SIGTERM), (600, signal.SIGINT)]
)
def test_a_signal_leaves_nothing_running_in_the_background(
    project: Path, timed: int, number: signal.Signals
) -> None:
    started = _begin(project, dvc=_ENDLESS_BACKGROUND, timed=timed)
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


def test_dependents_of_changed_stages_are_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dvc.repo import Repo

    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text(_THREE)
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    with Repo.init(no_scm=True) as repo:
        repo.reproduce()
    monkeypatch.setattr(pipeline, "ROOT", tmp_path)
    assert pipeline._changed(["first", "second", "third"]) == []
    (tmp_path / "one").write_text("another")
    assert pipeline._changed(["first", "second", "third"]) == ["first", "second"]
    assert pipeline._changed(["second", "third"]) == []
