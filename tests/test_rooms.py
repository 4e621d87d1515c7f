"""Imports between packages keep the contracts of pyproject.toml."""

import subprocess
import sys
from pathlib import Path

from repro.paths import ROOT


def test_a_package_imports_only_packages_below_it() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
