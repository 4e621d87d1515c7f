"""Conversion of any markup to plain text with mwparserfromhell: correct, but slow."""

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Node, Tag, Text, Wikilink
from mwparserfromhell.parser import ParserError
from mwparserfromhell.wikicode import Wikicode

from repro.corpus.markup.shown import (
    DROPPED_LINK,
    DROPPED_TAGS,
    entity,
    is_dropped_section,
    tidy,
)


class UnreadableMarkup(Exception):
    """The parser cannot handle the markup, or not in bounded time; the message says why."""


def parsed_text(markup: str) -> str:
    """Convert any markup to plain text; `repro.corpus.markup.plain.plain_text` has the rules.

    Raises
    ------
    UnreadableMarkup
        The parser cannot handle the page.
    """
    return tidy(visible_text(markup))


def visible_text(markup: str) -> str:
    """Return the visible text of any markup, before `tidy`.

    Raises
    ------
    UnreadableMarkup
        The parser cannot handle the page.
    """
    try:
        # Style tags ('' and ''') cause most of the parser's back-tracking; `tidy` removes them.
        code = mwparserfromhell.parse(markup, skip_style_tags=True)
        return "".join(_without_sections(code))
    except (ParserError, RecursionError) as error:
        raise UnreadableMarkup(str(error)) from None


def _without_sections(code: Wikicode) -> list[str]:
    texts: list[str] = []
    dropped_level: int | None = None
    for node in code.nodes:
        if isinstance(node, Heading):
            if dropped_level is None or node.level <= dropped_level:
                dropped_level = node.level if is_dropped_section(_render(node.title)) else None
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
        if DROPPED_LINK.match(str(node.title)):
            return ""
        # The pipe trick [[A|]] shows the title.
        return _render(node.text) or _render(node.title).lstrip(":")
    if isinstance(node, ExternalLink):
        return _render(node.title)
    if isinstance(node, HTMLEntity):
        return entity(str(node)[1:-1]) or ""
    if isinstance(node, Tag):
        name = str(node.tag).strip().lower()
        if name in ("br", "hr"):
            return "\n"
        return "" if name in DROPPED_TAGS else _render(node.contents)
    return ""
