"""Rules shared by scanner and parser: which parts of a page are kept, and how text is tidied."""

import re
from html.entities import name2codepoint

# Tags whose contents are not running text. Templates, comments and arguments are always dropped.
DROPPED_TAGS = frozenset(
    [
        *("categorytree", "ce", "chem", "gallery", "graph", "hiero", "imagemap", "inputbox"),
        *("mapframe", "math", "pre", "ref", "references", "score", "script", "source", "style"),
        *("syntaxhighlight", "table", "templatedata", "timeline"),
    ]
)
# Files, categories and links to other projects ([[fr:Anarchisme]]) show no text in the article.
# With a leading colon they are ordinary links.
DROPPED_LINK = re.compile(
    r"\s*(?:(?i:file|image|media|category)|[a-z]{2,3}(?:-[a-z]+)*|simple)\s*:"
)
# Sections of sources and links, dropped with their subsections.
_DROPPED_SECTIONS = frozenset(
    [
        *("bibliography", "citations", "external links", "footnotes", "further reading"),
        *("gallery", "notes", "notes and references", "references", "see also", "sources"),
        "works cited",
    ]
)
_QUOTES = re.compile("''+")
_MAGIC_WORD = re.compile("__[A-Z]+__")
# Remains of dropped templates: "Aristotle ( ; , 384 BC)" and "Lincoln ()".
_EMPTY_BRACKETS = [
    re.compile(r"\((?<!\S\()(?:[,;:]|[^\S\n])*\)"),
    re.compile(r"\[(?<!\S\[)[^\S\n]*+\]"),
]
_BRACKET_START = re.compile(r"\([^\S\n]*+[,;:](?:[,;:]|[^\S\n])*")
_SPACE_BEFORE_STOP = re.compile(r" (?=[,.;:!?)](?:\s|$))")
# White space other than blank and line end; replacing each is faster than a pattern.
_OTHER_BLANKS = (
    "\t\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_BLANKS = re.compile("  +")
_HAS_WORD = re.compile(r"\w")


def is_dropped_section(title: str) -> bool:
    """Return whether the section with this heading lists sources."""
    return _QUOTES.sub("", title).strip().lower() in _DROPPED_SECTIONS


def entity(name: str) -> str | None:
    """Return the text that `&name;` shows, or None if it is not an entity.

    Parameters
    ----------
    name
        An HTML entity name, `#` and a decimal number, or `#x` and a hexadecimal number.
    """
    if not name.startswith("#"):
        number = name2codepoint.get(name, 0)
    else:
        number = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
    if not 1 <= number <= 0x10FFFF:
        return None
    # A line end would split the paragraph, and UTF-8 cannot encode half of a surrogate pair.
    return " " if 0xD800 <= number <= 0xDFFF or chr(number).isspace() else chr(number)


def tidy(text: str) -> str:
    """Remove the remains of markup: quotes, empty brackets, list markers and extra blanks.

    Parameters
    ----------
    text
        The visible text of a page.

    Returns
    -------
    str
        The tidied lines that have a word.
    """
    text = _MAGIC_WORD.sub("", _QUOTES.sub("", text))
    for empty in _EMPTY_BRACKETS:
        text = empty.sub("", text)
    text = _BRACKET_START.sub("(", text)
    for other in _OTHER_BLANKS:
        text = text.replace(other, " ")
    text = _BLANKS.sub(" ", text)
    lines = [line.strip().lstrip("*#:; ") for line in text.split("\n")]
    return _SPACE_BEFORE_STOP.sub("", "\n".join(line for line in lines if _HAS_WORD.search(line)))
