"""Wiki markup to plain paragraphs: substitutions where they suffice, a parser for the rest."""

import re

from repro.corpus.markup.parsed import UnreadableMarkup, parsed
from repro.corpus.markup.scanned import reduced, scanned_text, unmarked
from repro.corpus.markup.shown import tidy

# For all that is begun and never closed the parser reads on to the end of the page: two seconds for
# this product of what is open and characters.
_MOST_READING = 20_000_000
# What begins and what ends a construct; a line break has no end.
_ENDS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"({)|}", r"(\[)|\]", r"(<!--)|-->", r"(<(?!br|hr|p|li)[a-z])|</|/>")
]


def plain_text(markup: str) -> str:
    """Turn wiki markup into plain text.

    Templates, tables, references, files, categories, formulas and headings are dropped, and so are
    the sections that list sources; links and style leave their visible text.

    Parameters
    ----------
    markup
        The source of one page; no XML holds control characters, and this takes some for its own.

    Returns
    -------
    str
        Paragraphs and list items, one a line; empty if nothing is left.

    Raises
    ------
    UnreadableMarkup
        Neither the scanner nor the parser takes the page.
    """
    text = scanned_text(markup)
    if text is not None:
        return text
    # What is well formed is most of a page, and no work for the parser.
    rest = reduced(markup)
    if _left_open(rest) * len(rest) > _MOST_READING:
        raise UnreadableMarkup("too much is begun and not closed")
    return tidy(unmarked(parsed(rest)))


def _left_open(markup: str) -> int:
    total = 0
    for ends in _ENDS:
        depth = 0
        for begins in ends.findall(markup):
            depth = depth + 1 if begins else max(0, depth - 1)
        total += depth
    return total
