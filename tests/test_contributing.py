"""The worked examples of CONTRIBUTING.md, made to a copy of the project and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repro.paths import ROOT

pytestmark = pytest.mark.slow

_BLOCK = re.compile(r"^```(yaml|python|diff)\n(.*?)^```$", re.M | re.S)
_FILE = re.compile(r"# (\S+\.(?:yaml|py))\n")
_SECTIONS = ("A model", "A protocol", "A cluster", "An experiment", "A study", "A log reader")


def _sections() -> dict[str, list[tuple[str, str]]]:
    """The blocks of each section, with their languages."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## ", text, flags=re.M)
    return {part.partition("\n")[0]: _BLOCK.findall(part) for part in parts}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with every change of the page made to it, in its order."""
    folder = tmp_path_factory.mktemp("a project") / "repro"
    for name in ("src", "params", "data/published"):
        shutil.copytree(ROOT / name, folder / name)
    for language, block in (block for blocks in _sections().values() for block in blocks):
        if language == "diff":
            subprocess.run(["git", "apply", "-"], input=block, cwd=folder, text=True, check=True)
        elif named := _FILE.match(block):
            with (folder / named[1]).open("a", encoding="utf-8") as file:
                file.write(block[named.end() :])
    return folder


def test_the_page_has_the_six_things_that_people_add() -> None:
    assert tuple(_sections()) == _SECTIONS


@pytest.mark.parametrize("section", _SECTIONS)
def test_a_worked_example_works(project: Path, section: str) -> None:
    checks = [
        block
        for language, block in _sections()[section]
        if language == "python" and not _FILE.match(block)
    ]
    assert checks
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(checks)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
