"""What the documents show runs as it stands there."""

import re
from pathlib import Path

import pytest

from repro.paths import ROOT

_BLOCKS = [
    pytest.param(block, id=f"{path.stem}-{number}")
    for path in sorted((ROOT / "docs").glob("*.md"))
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)
    )
]


def test_there_is_something_to_run() -> None:
    assert _BLOCKS


@pytest.mark.parametrize("block", _BLOCKS)
def test_code_runs(block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "a document", "exec"), {})
