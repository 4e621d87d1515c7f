"""What a process may use of a machine."""

import os
from pathlib import Path

import pytest

from repro.observe.environment import usable_cores


def test_without_a_limit_it_is_where_it_may_run(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("limit", "cores"), [("50000 100000", 0.5), ("20000 100000", 0.2)])
def test_a_containers_limit_counts(tmp_path: Path, limit: str, cores: float) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert usable_cores(tmp_path) == cores


def test_a_limit_above_the_cores_is_none(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("99900000 100000\n")
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
