"""Verdicts that were kept in a file, and what is said of a file that is none."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from repro.claims.findings import Judgement
from repro.claims.judged import read_judgements
from repro.errors import ReproError

_ONE = Judgement(
    **dict.fromkeys(("id", "statement", "source", "section", "unit", "note"), "x"),
    **dict.fromkeys(("published", "predicted", "testbed", "cluster"), 1.5),
    **dict.fromkeys(("predicted_interval", "interval", "cluster_interval"), (1.0, 2.0)),
    **dict.fromkeys(("predicted_verdict", "verdict", "cluster_verdict"), "not run"),
    **dict.fromkeys(("predicted_reason", "reason", "cluster_reason"), ""),
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
