"""The model's answers are those that were kept; a commit that changes them renews them."""

from pathlib import Path

import pytest
from goldens import FOLDER, differences, write

pytestmark = pytest.mark.slow


def test_no_answer_drifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    drift = "\n".join(differences(FOLDER, tmp_path))
    assert not drift, f"{drift}\nrenew: python tests/predict/goldens.py write {FOLDER}"


def test_a_drift_is_said_by_group_with_its_size(tmp_path: Path) -> None:
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    text = (tmp_path / "counts.csv").read_text().splitlines()
    key, value = text[1].rsplit(",", 1)
    changed = [text[0], f"{key},{1.02 * float(value):.12g}", *text[2:-1]]
    (tmp_path / "counts.csv").write_text("\n".join(changed) + "\n")
    gone, drifted = differences(FOLDER, tmp_path)
    assert "counts: 1 keys are gone" in gone
    assert "1 of" in drifted and "most by 0.02" in drifted and key in drifted
