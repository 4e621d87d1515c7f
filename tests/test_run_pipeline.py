"""What the pipeline tells of itself while DVC runs."""

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

# Losses beside what is measured write who they are, and take longer.
_DVC = """#!/bin/sh
echo "$@" >> called
case "$*" in
*losses*)
  echo $$ > beside
  sleep {beside}
  echo over >> beside
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
# Stands for the process that measures ahead; it ends behind the notebooks.
_AHEAD = """
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
    monkeypatch.setattr(pipeline, "_AHEAD", ("sh", str(tmp_path / "ahead")))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def _install(project: Path, status: int = 0, beside: float = 0.0) -> None:
    script = project / "dvc"
    script.write_text(_DVC.format(sleep=0.1, beside=beside))
    script.chmod(0o700)
    (project / "ahead").write_text(_AHEAD.format(status=status))


def _said(capsys: pytest.CaptureFixture[str]) -> str:
    """What it said, as if no stage took a second."""
    return re.sub(r"\b\d+ s\b", "0 s", capsys.readouterr().out)


def test_it_says_what_runs_how_long_and_what_to_look_at(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    first = _said(capsys)
    assert "[2/5] first_look: 0 s gone, no earlier run tells how long 3 of the rest take" in first
    assert "beside experiments: their notebooks, losses, predictions, validation" in first
    assert "first_look took 0 s; look at results/first_look/breakdown.png\n" in first
    # What is measured ahead can be looked at when its notebook is done.
    assert "experiment@weak_scaling took 0 s\n" in first
    assert "experiment@weak_scaling: look at results/weak_scaling.nc" in first
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
    second = _said(capsys)
    assert "[2/5] first_look: 0 s gone, about 6.0 min left" in second
    assert "about 3.3 min left" in second
    times = json.loads((project / "stage_times.json").read_text())
    assert times["ci"] == {"site": 1.0}
    assert times["default"]["first_look"] < 100.0
    # The first look goes first, whatever the file's order.
    assert _called(project) == 2 * [
        "first_look",
        "notebooks resolve",
        "--single-item experiment@weak_scaling",
        "",
    ]


def test_notebooks_follow_what_is_measured(project: Path) -> None:
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    assert (project / "measured").read_text() == "default weak_scaling\n"
    assert (project / "followed").read_text() == (project / "measures").read_text()


def test_where_nothing_changed_nothing_is_measured(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_changed", lambda stages: [])
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    assert not (project / "measured").exists()
    assert _called(project) == ["first_look", "notebooks resolve", ""]


def _called(project: Path, beside: bool = False) -> list[str]:
    """What DVC was asked to run, beside what is timed or in its turn."""
    called = [line.partition("repro")[2] for line in (project / "called").read_text().splitlines()]
    return [line.strip() for line in called if ("losses" in line) == beside]


def test_what_is_beside_is_waited_for_and_may_fail_there(project: Path) -> None:
    _install(project, beside=0.5)
    assert pipeline.run_pipeline(None) == 0
    assert _called(project, beside=True) == ["--single-item losses predictions validation"]
    assert (project / "beside").read_text().splitlines()[1] == "over"


def test_what_is_beside_ends_where_what_is_measured_fails(project: Path) -> None:
    _install(project, status=7, beside=600)
    assert pipeline.run_pipeline(None) == 7
    assert not (project / "beside").exists() or not _runs(project / "beside")


def test_an_allowance_of_cores_is_left_to_what_is_timed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "is_rationed", lambda: True)
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    assert (project / "measured").exists()
    assert _called(project, beside=True) == []
    assert _called(project) == ["first_look", "notebooks resolve", ""]
    # What takes its turn is of the rest.
    assert "no earlier run tells how long 4 of the rest take" in capsys.readouterr().out


def test_a_first_run_is_told_from_the_reference_run_how_long_it_will_take(
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
    # A machine that took 180 seconds for what took that run 60.
    (project / "stage_times.json").write_text(json.dumps({"default": {"dump": 180.0}}))
    assert pipeline.run_pipeline(None) == 0
    said = _said(capsys)
    slower = (60 + 180) / (60 + 60)
    assert (
        f"about {slower * (120 + 30 + 240) / 60:.1f} min left, from what the reference run" in said
    )
    # The first look and the experiment were over at once, and are stages of both now.
    last = (60 + 180) / (60 + 60 + 120 + 30) * 240
    assert f"site: 0 s gone, about {last / 60:.1f} min left, from" in said


def test_what_stages_took_is_kept_with_a_reference_run(project: Path) -> None:
    with pytest.raises(ReproError, match="no stage has run here"):
        pipeline.keep_times()
    _install(project)
    assert pipeline.run_pipeline(None) == 0
    kept = json.loads(pipeline.keep_times().read_text())["default"]
    assert kept.keys() == {"first_look", "experiment@weak_scaling", "site"}


def test_a_profile_is_chosen_by_one_word_and_a_failure_is_passed_on(project: Path) -> None:
    _install(project, status=7)
    assert pipeline.run_pipeline("ci") == 7
    text = (project / "pipeline.yaml").read_text()
    assert text == "# How thoroughly.\nprofile: ci\n"
    # A stage that failed took no time worth knowing.
    times = json.loads((project / "stage_times.json").read_text())["ci"]
    assert times.keys() == {"first_look"}


def test_an_unknown_profile_is_not_kept(project: Path) -> None:
    with pytest.raises(ReproError, match="unknown profile 'thorogh'; choose from: default, thoro"):
        pipeline.run_pipeline("thorogh")
    assert "profile: default" in (project / "pipeline.yaml").read_text()


_ENDLESS = "#!/bin/sh\nsh -c 'echo $$ > stage; exec sleep 600'\n"
_ENDLESS_BESIDE = """#!/bin/sh
case "$*" in
*losses*) sh -c 'echo $$ > stage; exec sleep 600' ;;
esac
"""


def _begin(
    project: Path, ignored: signal.Signals | None = None, dvc: str = _ENDLESS, timed: int = 0
) -> "subprocess.Popen[bytes]":
    """A pipeline with a stage, which writes its number, that would not end before long."""
    script = project / "dvc"
    script.write_text(dvc)
    script.chmod(0o700)
    code = (
        "from pathlib import Path; from repro import pipeline as p;"
        "p._stages = lambda: {'experiment@weak_scaling': ['weak_scaling.nc']};"
        f"p._changed, p._AHEAD = list, ('sh', '-c', 'sleep {timed}');"
        "p.ROOT, p._TIMES = Path.cwd(), Path('times'); p.run_pipeline(None)"
    )

    def dispose() -> None:
        # Whatever what runs the tests ignores.
        for one in _ENDING:
            signal.signal(one, signal.SIG_IGN if one == ignored else signal.SIG_DFL)

    started = subprocess.Popen([sys.executable, "-c", code], cwd=project, preexec_fn=dispose)
    wait_until(lambda: (project / "stage").exists() and (project / "stage").read_text())
    return started


def test_told_to_end_while_dvc_starts_it_ends_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = subprocess.Popen

    def late(*arguments: Any, **how: Any) -> "subprocess.Popen[Any]":
        started.append(start(*arguments, **how))
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
    """Whether the process that noted its number does."""
    return os.path.exists(f"/proc/{int(note.read_text().split()[0])}")


@pytest.mark.parametrize("how", _ENDING)
def test_told_to_end_it_leaves_nothing_running(project: Path, how: signal.Signals) -> None:
    started = _begin(project)
    started.send_signal(how)
    assert started.wait(60) is not None
    wait_until(lambda: not _stage_runs(project))


@pytest.mark.parametrize(
    ("timed", "how"), [(0, signal.SIGTERM), (600, signal.SIGTERM), (600, signal.SIGINT)]
)
def test_told_to_end_it_leaves_nothing_running_beside(
    project: Path, timed: int, how: signal.Signals
) -> None:
    started = _begin(project, dvc=_ENDLESS_BESIDE, timed=timed)
    started.send_signal(how)
    assert started.wait(60) is not None
    wait_until(lambda: not _stage_runs(project))


def test_behind_a_shells_ampersand_a_kill_ends_it_too(project: Path) -> None:
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


def test_what_depends_on_what_changed_is_measured_too(
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
