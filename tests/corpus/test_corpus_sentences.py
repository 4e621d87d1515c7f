"""Sentences: mostly right, and nothing lost."""

import pytest
from synthetic_corpus import prose

from repro.corpus.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("A line\nand another", ["A line", "and another"]),
        ("Dr. Who met J. S. Bach. They sang.", ["Dr. Who met J. S. Bach.", "They sang."]),
        (
            "The U.S. Army paid $3.50 for it. 7 left.",
            ["The U.S. Army paid $3.50 for it.", "7 left."],
        ),
        ('He said "no." "Why?" she asked.', ['He said "no."', '"Why?" she asked.']),
        ("It grew, e.g. in Rome. École.", ["It grew, e.g. in Rome.", "École."]),
        ("Wait... What?", ["Wait...", "What?"]),
        ("  \n\n", []),
        (".", ["."]),
    ],
)
def test_boundaries(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


def test_only_white_space_is_dropped() -> None:
    for seed in range(30):
        text = prose(seed)
        sentences = split_sentences(text)
        assert len(sentences) > 10
        assert "".join("".join(sentences).split()) == "".join(text.split())
