"""Conversion of wiki markup to plain text: by substitutions, else by a parser."""

import re

from repro.corpus.markup.parsed import UnreadableMarkup, visible_text
from repro.corpus.markup.scanned import replace_marks, scanned_text, strip_blocks
from repro.corpus.markup.shown import tidy

# For each unclosed construct the parser reads to the end of the page. This product of unclosed
# constructs and characters takes it two seconds.
_MAX_PARSER_WORK = 20_000_000
# Opening (in a group) and closing delimiters of each construct; a line break has no closing one.
_DELIMITERS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"({)|}", r"(\[)|\]", r"(<!--)|-->", r"(<(?!br|hr|p|li)[a-z])|</|/>")
]


def plain_text(markup: str) -> str:
    """Convert wiki markup to plain text.

    Templates, tables, references, files, categories, formulas, headings and the sections that list
    sources are dropped. Links and style tags keep their visible text.

    Parameters
    ----------
    markup
        The source of one page. It has no control characters, as XML forbids them; some are used
        as marks.

    Returns
    -------
    str
        Paragraphs and list items, one per line; may be empty.

    Raises
    ------
    UnreadableMarkup
        Neither the scanner nor the parser can convert the page.
    """
    text = scanned_text(markup)
    if text is not None:
        return text
    # Most of a page is well formed; the parser gets only the rest.
    rest = strip_blocks(markup)
    if _count_unclosed(rest) * len(rest) > _MAX_PARSER_WORK:
        raise UnreadableMarkup("too many constructs are not closed")
    return tidy(replace_marks(visible_text(rest)))


def _count_unclosed(markup: str) -> int:
    total = 0
    for delimiter in _DELIMITERS:
        depth = 0
        for opening in delimiter.findall(markup):
            depth = depth + 1 if opening else max(0, depth - 1)
        total += depth
    return total
