"""Data flows one way: the contracts of pyproject.toml hold."""

import subprocess
import sys
from pathlib import Path

from repro.paths import ROOT


def test_no_room_imports_one_above_it() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
