"""Documents: code runs, links lead somewhere, numbers agree with their sources."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from repro.paths import ROOT

_PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "notebooks/*.md") for path in ROOT.glob(pattern)
)
_BLOCKS = [
    pytest.param(block, id=f"{path.stem}-{number}")
    for path in _PAGES
    if path.parent != ROOT
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)
    )
]
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#([^)]+))?\)")
_README_LINES = 75  # text before the links


def test_there_is_something_to_run() -> None:
    assert _BLOCKS


@pytest.mark.parametrize("block", _BLOCKS)
def test_code_runs(block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "a document", "exec"), {})


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        linked = page.parent / target
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings]
            assert anchor in slugs, f"{target}#{anchor}"


def test_the_readme_is_a_landing_page() -> None:
    text, _, _ = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Links\n")
    assert len(text.splitlines()) <= _README_LINES


@pytest.mark.slow
def test_numbers_agree_with_their_sources() -> None:
    check = [sys.executable, str(ROOT / "docs" / "renew.py"), "--check"]
    result = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
