"""Wiki markup to plain paragraphs."""

import re

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Node, Tag, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

# Contents that are no running text. Templates, comments and arguments are dropped by their kind.
_DROPPED_TAGS = frozenset(
    [
        *("categorytree", "ce", "chem", "gallery", "graph", "hiero", "imagemap", "inputbox"),
        *("mapframe", "math", "pre", "ref", "references", "score", "script", "source", "style"),
        *("syntaxhighlight", "table", "templatedata", "timeline"),
    ]
)
# Sections that hold lists of sources and links, with everything below them.
_DROPPED_SECTIONS = frozenset(
    [
        *("bibliography", "citations", "external links", "footnotes", "further reading"),
        *("gallery", "notes", "notes and references", "references", "see also", "sources"),
        "works cited",
    ]
)
# Files and categories, and links to other projects' pages ([[fr:Anarchisme]]), show no text here.
# A leading colon makes any of them an ordinary link.
_DROPPED_LINK = re.compile(
    r"\s*(?:(?i:file|image|media|category)|[a-z]{2,3}(?:-[a-z]+)*|simple)\s*:"
)
_QUOTES = re.compile("'{2,}")
_MAGIC_WORD = re.compile("__[A-Z]+__")
# What a dropped template leaves behind: "Aristotle ( ; , 384 BC)" and "Lincoln ()".
_EMPTY_BRACKETS = re.compile(r"(?<!\S)(?:\([,;:\s]*\)|\[\s*\])")
_BRACKET_START = re.compile(r"\(\s*[,;:]+[,;:\s]*")
_SPACE_BEFORE_STOP = re.compile(r" +(?=[,.;:!?)](?:\s|$))")
_HAS_WORD = re.compile(r"\w")


def plain_text(markup: str) -> str:
    """Turn wiki markup into plain text.

    Templates, tables, references, files, categories, formulas and headings are dropped, and so are
    the sections that list sources; links and style leave their visible text.

    Parameters
    ----------
    markup
        The source of one page.

    Returns
    -------
    str
        Paragraphs and list items, one a line; empty if nothing is left.

    Raises
    ------
    mwparserfromhell.parser.ParserError
        The parser's own word for a page that it cannot handle.
    """
    # Style tags ('' and ''') are most of the parser's back-tracking, and are easier to drop here.
    code = mwparserfromhell.parse(markup, skip_style_tags=True)
    lines = (_tidy(line) for line in "".join(_without_sections(code)).split("\n"))
    return "\n".join(line for line in lines if _HAS_WORD.search(line))


def _without_sections(code: Wikicode) -> list[str]:
    texts: list[str] = []
    dropped_level: int | None = None
    for node in code.nodes:
        if isinstance(node, Heading):
            if dropped_level is None or node.level <= dropped_level:
                title = _QUOTES.sub("", _render(node.title)).strip().lower()
                dropped_level = node.level if title in _DROPPED_SECTIONS else None
            texts.append("\n")
        elif dropped_level is None:
            texts.append(_render_node(node))
    return texts


def _render(code: Wikicode | None) -> str:
    return "" if code is None else "".join(_render_node(node) for node in code.nodes)


def _render_node(node: Node) -> str:
    if isinstance(node, Text):
        return node.value
    if isinstance(node, Wikilink):
        if _DROPPED_LINK.match(str(node.title)):
            return ""
        # [[A|]] is the pipe trick: it shows the title.
        return _render(node.text) or _render(node.title).lstrip(":")
    if isinstance(node, ExternalLink):
        return _render(node.title)
    if isinstance(node, HTMLEntity):
        return _entity(node)
    if isinstance(node, Tag):
        name = str(node.tag).strip().lower()
        if name in ("br", "hr"):
            return "\n"
        return "" if name in _DROPPED_TAGS else _render(node.contents)
    return ""


def _entity(node: HTMLEntity) -> str:
    try:
        character: str = node.normalize()
    except ValueError:  # a number that is no code point
        return ""
    # A line is a paragraph, and JSON in UTF-8 holds no half of a surrogate pair.
    return " " if character.isspace() or 0xD800 <= ord(character[0]) <= 0xDFFF else character


def _tidy(line: str) -> str:
    line = _MAGIC_WORD.sub("", _QUOTES.sub("", line))
    line = _BRACKET_START.sub("(", _EMPTY_BRACKETS.sub("", line))
    return _SPACE_BEFORE_STOP.sub("", " ".join(line.split())).lstrip("*#:; ")
