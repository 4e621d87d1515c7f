"""Temporary files of atomic writes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repro.atomic import replace_text, temporary_sibling

_WRITE_FOREVER = """
import sys, time
from pathlib import Path
from repro.atomic import replacing, temporary_sibling
temporary_sibling(Path(sys.argv[1]) / "site").mkdir()
with replacing(Path(sys.argv[1]) / "data.csv") as temporary:
    temporary.write_text("half of it")
    print("writing", flush=True)
    time.sleep(1000)
"""


def test_the_next_write_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITE_FOREVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        left = set(tmp_path.iterdir())
        replace_text(tmp_path / "other.csv", "x")
        assert set(tmp_path.iterdir()) == {*left, tmp_path / "other.csv"}, "it is still writing"
        writer.send_signal(signal.SIGKILL)
    replace_text(tmp_path / "other.csv", "y")
    assert [path.name for path in tmp_path.iterdir()] == ["other.csv"]


@pytest.mark.parametrize(
    "name", [".data.csv.tmp", ".a.HOST-x.1.tmp", ".a.elsewhere-99999999.1.tmp"]
)
def test_files_of_others_stay(name: str, tmp_path: Path) -> None:
    file = tmp_path / name.replace("HOST", os.uname().nodename)
    file.write_text("kept")
    replace_text(tmp_path / "other.csv", "x")
    assert file.read_text() == "kept"


def test_names_differ(tmp_path: Path) -> None:
    assert len({temporary_sibling(tmp_path / "a.csv") for _ in range(100)}) == 100
