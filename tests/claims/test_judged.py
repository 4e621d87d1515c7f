"""The file of judgements, and errors of files that are truncated or missing."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from repro.claims.findings import SOURCES, Finding, Judgement, read_judgements
from repro.errors import ReproError

_ONE = Judgement(
    **dict.fromkeys(("id", "statement", "source", "section", "unit", "note"), "x"),
    published=1.5,
    findings={source: Finding(1.5, (1.0, 2.0), "not run") for source in SOURCES},
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    path.write_bytes(TypeAdapter(list[Judgement]).dump_json([_ONE]))
    assert read_judgements(path) == [_ONE]


@pytest.mark.parametrize("text", ["", "[{", '[{"id": "C001"}]'])
def test_a_file_cut_short_or_of_another_version_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "claims.json"
    path.write_text(text)
    with pytest.raises(ReproError, match=r"claims.json: is truncated or .*; fix: dvc repro claims"):
        read_judgements(path)


def test_there_may_be_none(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match="no verdicts"):
        read_judgements(tmp_path / "claims.json")
