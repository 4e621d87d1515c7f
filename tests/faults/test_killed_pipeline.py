"""A pipeline that is killed at any moment: the next run goes on, and nothing is lost or left.

REPRO_FAULT_MOMENTS sets the moments per way of ending it (default 1), REPRO_FAULT_SEED the seed.
"""

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Thread

import pytest
import yaml
from left_behind import found_by_command, left_behind, read, wait_until_clean
from waiting import PATIENCE_S, wait_until

from repro.paths import ROOT

pytestmark = [pytest.mark.testbed, pytest.mark.slow]

_MOMENTS = int(os.environ.get("REPRO_FAULT_MOMENTS", "1"))
_SEED = int(os.environ.get("REPRO_FAULT_SEED", "1"))
# By way of ending it: a part of the command line of the process that is ended, the signal (None:
# its terminal closes), and the latest moment after its start.
_WAYS = {
    "Ctrl-C": ("repro pipeline", signal.SIGINT, 15.0),
    "SIGTERM": ("repro pipeline", signal.SIGTERM, 15.0),
    "closed terminal": ("repro pipeline", None, 15.0),
    "SIGKILL": ("repro pipeline", signal.SIGKILL, 15.0),
    "DVC killed": ("dvc --wait-for-lock repro", signal.SIGKILL, 15.0),
    "measurement killed": ("repro measure", signal.SIGKILL, 6.0),
    "kernel killed": ("ipykernel_launcher", signal.SIGKILL, 2.0),
}
# One of each kind of stage; `measure` and `notebook` have more of the same.
_STUDY = "communication"
_STAGES = (
    *("machine", "dump", "extract", "tokenizer", "dataset", "compute", "first_look"),
    *("measure", "notebook"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's clone whose pipeline has one stage of each kind, without git."""
    folder = tmp_path_factory.mktemp("a clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    stages = yaml.safe_load((folder / "dvc.yaml").read_text())
    for name in set(stages["stages"]) - set(_STAGES):
        del stages["stages"][name]
    stages["stages"]["measure"]["foreach"] = [_STUDY]
    chosen = {"name": _STUDY, "parameters": "", "reads": _STUDY}
    stages["stages"]["notebook"]["foreach"] = {_STUDY: chosen}
    (folder / "dvc.yaml").write_text(yaml.safe_dump(stages, sort_keys=False))
    subprocess.run(["dvc", "config", "--local", "core.no_scm", "true"], cwd=folder, check=True)
    return folder


@dataclass
class _Terminal:
    """The pipeline, at a terminal of its own; `said` is what it and its stages said on stderr."""

    process: "subprocess.Popen[bytes]"
    controller: int
    errors: Path

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.controller)

    @property
    def said(self) -> str:
        return self.errors.read_text(errors="replace")


@contextmanager
def _pipeline(project: Path, errors: str = "errors") -> Iterator[_Terminal]:
    controller, end = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with (project / errors).open("wb") as file:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("repro"), "pipeline", "ci"],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project / "src")},
            stdin=end,
            stdout=end,
            stderr=file,
            preexec_fn=own_terminal,
        )
    os.close(end)
    Thread(target=_drain, args=(controller,), daemon=True).start()
    terminal = _Terminal(process, controller, project / errors)
    try:
        yield terminal
    finally:
        terminal.close()
        process.kill()
        process.wait()


def _drain(controller: int) -> None:
    with suppress(OSError):
        while os.read(controller, 1 << 16):
            pass


def _of(project: Path) -> list[str]:
    """Return the command lines of all processes of a project."""
    mark = f"PYTHONPATH={project / 'src'} "
    return [
        read(process / "cmdline")
        for process in Path("/proc").glob("[0-9]*")
        if mark in read(process / "environ")
    ]


def _finished(project: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (project / "results/store").glob("*.nc")}


def _end(way: str, terminal: _Terminal, moment: float) -> None:
    """End the pipeline in one of the ways, after a fraction of the time until its latest moment."""
    command, number, latest_s = _WAYS[way]

    def victims() -> list[int]:
        return found_by_command(terminal.process.pid, command)

    wait_until(lambda: terminal.process.poll() is not None or victims())
    end = time.monotonic() + moment * latest_s
    while terminal.process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    if number is None:
        terminal.close()
    elif terminal.process.poll() is None:
        for pid in victims()[:1]:
            os.kill(pid, number)


def test_a_pipeline_that_is_ended_anywhere_goes_on(project: Path) -> None:
    chosen, before = Random(_SEED), left_behind()
    finished: dict[Path, bytes] = {}
    for way in chosen.sample(list(_WAYS) * _MOMENTS, len(_WAYS) * _MOMENTS):
        with _pipeline(project) as terminal:
            _end(way, terminal, chosen.random())
            status = terminal.process.wait(PATIENCE_S)
            wait_until(lambda: not _of(project), lambda: _of(project))
        last = terminal.said.splitlines()[-1:]
        print(f"{way}: status {status}, {len(_finished(project))} results, {last}", file=sys.stderr)
        # Papermill prints one if its kernel is killed.
        assert "Traceback" not in terminal.said or "kernel" in way, f"{way}: {terminal.said}"
        wait_until_clean(before)
        now = _finished(project)
        assert finished.items() <= now.items(), f"{way}: a finished result was lost or changed"
        finished = now
        if status == 0:  # it was done before the moment came: start again from nothing
            shutil.rmtree(project / "results")
            shutil.rmtree(project / ".dvc" / "cache")
            finished = {}
    with _pipeline(project) as terminal:
        assert terminal.process.wait(PATIENCE_S) == 0, terminal.said
    assert finished.items() <= _finished(project).items()
    assert not list(project.rglob("*.tmp"))
    assert not _of(project)


def test_two_pipelines_in_one_clone_do_not_run_beside_each_other(project: Path) -> None:
    """DVC refuses the second; with `make repro` it waits."""
    notebook = project / f"results/notebooks/{_STUDY}.ipynb"
    notebook.unlink()
    with _pipeline(project) as one, _pipeline(project, "other errors") as other:
        both = {terminal.process.wait(2 * PATIENCE_S): terminal for terminal in (one, other)}
    assert 0 in both, one.said
    for status, terminal in both.items():
        assert "Traceback" not in terminal.said
        assert status == 0 or "it is being blocked by" in terminal.said
    assert notebook.exists()
