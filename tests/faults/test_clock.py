"""The wall clock may jump during a measurement; no duration comes from it."""

import re
import time

import pytest

from repro.paths import ROOT
from repro.train.megatron.timers import RunningTimers

_SOURCES = ROOT / "src" / "repro"
_WALL_CLOCK = re.compile(r"\btime\.time\(|\btime_ns\(|datetime\.now\(")


def test_the_wall_clock_is_read_for_provenance_only() -> None:
    readers = [
        str(path.relative_to(_SOURCES))
        for path in _SOURCES.rglob("*.py")
        if _WALL_CLOCK.search(path.read_text())
    ]
    assert readers == ["observe/environment.py"]


@pytest.mark.usefixtures("cuda_means_cpu")
def test_a_jump_changes_no_time_of_megatrons_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = RunningTimers()("forward-compute", log_level=2)
    timer.start()
    yesterday = time.time() - 86400
    monkeypatch.setattr(time, "time", lambda: yesterday)
    timer.stop()
    assert 0 <= timer.elapsed() < 86400
