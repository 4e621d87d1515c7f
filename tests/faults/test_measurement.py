"""A measurement that is killed at any moment: finished results stay, and nothing else is left.

REPRO_FAULT_MOMENTS sets the moments per signal and process (default 1), REPRO_FAULT_SEED the seed.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from left_behind import found_by_command, left_behind, wait_until_clean
from made_up import made_up_computing
from waiting import PATIENCE_S

from repro.results.store import read_dataset, write_dataset

pytestmark = [pytest.mark.testbed, pytest.mark.slow]

_MOMENTS = int(os.environ.get("REPRO_FAULT_MOMENTS", "1"))
_SEED = int(os.environ.get("REPRO_FAULT_SEED", "1"))
# Over three protocols on 2 and 8 GPUs.
_RESULTS = 6
_LONGEST_S = 20.0
_MEASURE = (
    "import sys\n"
    "try:\n"
    "    from repro.catalog.studies.selection import select\n"
    "    from repro.errors import ReproError\n"
    "    from repro.experiments.sources import get_results\n"
    "    try:\n"
    "        get_results(select('weak_scaling', models='bert-large', profile='ci'), sys.argv[1])\n"
    "    except ReproError as error:\n"
    "        sys.exit(str(error))\n"
    "except KeyboardInterrupt:\n"
    "    sys.exit(130)\n"
)
# By process: its command line has this.
_VICTIMS = {
    "measurement": "repro.experiments.sources",
    "supervisor": "repro.launch.ranks.supervisor",
    "rank": "multiprocessing.forkserver",
}


@pytest.fixture
def project(tmp_path: Path, enwiki: Path) -> Path:
    """A folder of results with computing times of this machine."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/enwiki").symlink_to(enwiki)
    times = np.broadcast_to(0.02 + 0.01 * np.array([1, 4, 16])[:, None], (3, 2))
    computing = made_up_computing(["bert-large"], times, [1e7, 2e7, 5e7])
    write_dataset(computing, tmp_path / "results/compute.nc")
    return tmp_path


def _start(project: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _MEASURE, "results/measured.nc"],
        env={**os.environ, "REPRO_HOME": str(project)},
        cwd=project,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _victims(process: "subprocess.Popen[str]", kind: str) -> list[int]:
    if kind == "measurement":
        return [process.pid]
    return found_by_command(process.pid, _VICTIMS[kind])[-1:]


def _stored(project: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (project / "results/store").glob("*.nc")}


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("measurement", signal.SIGINT),
        ("measurement", signal.SIGKILL),
        ("supervisor", signal.SIGKILL),
        ("rank", signal.SIGKILL),
    ],
)
def test_a_kill_at_any_moment_loses_nothing_that_is_finished(
    kind: str, number: signal.Signals, project: Path
) -> None:
    chosen, before = Random(f"{_SEED} {kind} {number}"), left_behind()
    finished: dict[str, bytes] = {}
    for _ in range(_MOMENTS):
        with _start(project) as process:
            end = time.monotonic() + chosen.uniform(0.0, _LONGEST_S)
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            for pid in _victims(process, kind) if process.poll() is None else ():
                os.kill(pid, number)
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in errors
        wait_until_clean(before)
        stored = _stored(project)
        assert finished.items() <= stored.items(), "a finished result was lost or changed"
        finished = stored
    with _start(project) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert finished.items() <= _stored(project).items() and len(_stored(project)) == _RESULTS
    dataset = read_dataset(project / "results/measured.nc")
    assert dataset["iteration_time_s"].isel(iteration=0, rank=0).notnull().all()
    assert not list((project / "results").rglob("*.tmp"))
    wait_until_clean(before)


def test_two_measurements_at_once_agree(project: Path) -> None:
    """They share the store, and neither reads half of a result."""
    both = [_start(project), _start(project)]
    for process in both:
        _, errors = process.communicate(timeout=2 * PATIENCE_S)
        assert process.returncode == 0, errors
    assert len(_stored(project)) == _RESULTS
