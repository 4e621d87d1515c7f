"""Sentences of plain English text, found by a regular expression and a list of abbreviations.

BERT and T5 need segment boundaries that are mostly right. The libraries that are more accurate
download models at run time.
"""

import re

# A stop, closing quotes or brackets, white space, and (as lookahead) a possible first character of
# a sentence. The escaped characters are curly quotes.
_BOUNDARY = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]*(?P<gap>\s+)(?=[\"'\u201c\u2018(\[]*[^\Wa-z_])")
_OPENING = "\"'\u201c\u2018(["
_INITIAL = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_ABBREVIATIONS = frozenset(
    [
        *("al", "approx", "ave", "bros", "ca", "capt", "cf", "cmdr", "co", "col", "corp", "dr"),
        *("eds", "etc", "fig", "figs", "gen", "gov", "hon", "inc", "jr", "lt", "ltd", "maj"),
        *("messrs", "mr", "mrs", "ms", "mt", "no", "nos", "op", "pp", "pres", "prof", "rep", "rev"),
        *("sen", "sgt", "sr", "st", "univ", "viz", "vol", "vols", "vs"),
        *("jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    ]
)


def split_sentences(text: str) -> list[str]:
    """Split text at line ends and after sentence stops.

    Only white space is dropped, so the sentences' tokens, joined, are the tokens of the text.

    Parameters
    ----------
    text
        Paragraphs, one per line.

    Returns
    -------
    list of str
        The sentences in order; none is empty.
    """
    return [
        sentence for line in text.split("\n") for sentence in _split_line(line.strip()) if sentence
    ]


def _split_line(line: str) -> list[str]:
    sentences = []
    start = 0
    for match in _BOUNDARY.finditer(line):
        if not _is_abbreviation(line[start : match.start()], match.group()):
            sentences.append(line[start : match.start("gap")])
            start = match.end()
    return [*sentences, line[start:]]


def _is_abbreviation(before: str, stop: str) -> bool:
    """Return whether a stop is part of an abbreviation: "Dr. Who", "J. S. Bach", "U.S. Army"."""
    if not stop.startswith(".") or len(stop.rstrip()) > 1:
        return False
    word = (before.rsplit(None, 1) or [""])[-1].lstrip(_OPENING)
    return word.lower() in _ABBREVIATIONS or _INITIAL.fullmatch(word) is not None
