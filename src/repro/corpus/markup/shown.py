"""What of a page is shown: what scanner and parser both go by."""

import re
from html.entities import name2codepoint

# Contents that are no running text. Templates, comments and arguments are dropped by their kind.
DROPPED_TAGS = frozenset(
    [
        *("categorytree", "ce", "chem", "gallery", "graph", "hiero", "imagemap", "inputbox"),
        *("mapframe", "math", "pre", "ref", "references", "score", "script", "source", "style"),
        *("syntaxhighlight", "table", "templatedata", "timeline"),
    ]
)
# Files and categories, and links to other projects' pages ([[fr:Anarchisme]]), show no text here.
# A leading colon makes any of them an ordinary link.
DROPPED_LINK = re.compile(
    r"\s*(?:(?i:file|image|media|category)|[a-z]{2,3}(?:-[a-z]+)*|simple)\s*:"
)
# Sections that hold lists of sources and links, with everything below them.
_DROPPED_SECTIONS = frozenset(
    [
        *("bibliography", "citations", "external links", "footnotes", "further reading"),
        *("gallery", "notes", "notes and references", "references", "see also", "sources"),
        "works cited",
    ]
)
_QUOTES = re.compile("''+")
_MAGIC_WORD = re.compile("__[A-Z]+__")
# What a dropped template leaves behind: "Aristotle ( ; , 384 BC)" and "Lincoln ()".
_EMPTY_BRACKETS = [
    re.compile(r"\((?<!\S\()(?:[,;:]|[^\S\n])*\)"),
    re.compile(r"\[(?<!\S\[)[^\S\n]*+\]"),
]
_BRACKET_START = re.compile(r"\([^\S\n]*+[,;:](?:[,;:]|[^\S\n])*")
_SPACE_BEFORE_STOP = re.compile(r" (?=[,.;:!?)](?:\s|$))")
# All other white space but the line's end; a pattern would look at every character.
_OTHER_BLANKS = (
    "\t\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_BLANKS = re.compile("  +")
_HAS_WORD = re.compile(r"\w")


def is_dropped_section(title: str) -> bool:
    """Tell by its heading whether a section lists sources."""
    return _QUOTES.sub("", title).strip().lower() in _DROPPED_SECTIONS


def entity(name: str) -> str | None:
    """What `&name;` shows; None if it is no entity, and stays as it is.

    Parameters
    ----------
    name
        A name of HTML, `#` and a decimal number, or `#x` and a hexadecimal one.
    """
    if not name.startswith("#"):
        number = name2codepoint.get(name, 0)
    else:
        number = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
    if not 1 <= number <= 0x10FFFF:
        return None
    # A line is a paragraph, and JSON in UTF-8 holds no half of a surrogate pair.
    return " " if 0xD800 <= number <= 0xDFFF or chr(number).isspace() else chr(number)


def tidy(text: str) -> str:
    """Take away what dropped markup leaves behind: quotes, empty brackets, list markers, blanks.

    Parameters
    ----------
    text
        What is shown of a page, line by line.

    Returns
    -------
    str
        The lines with a word in them.
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
