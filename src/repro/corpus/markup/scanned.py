"""Conversion of well-formed wiki markup to plain text by substitutions.

Innermost constructs are replaced first, each in one linear pass over the text. If anything still
looks like markup afterwards, it was not well formed, and the page is left to the parser. Otherwise
the text equals the parser's.
"""

import re
from collections.abc import Callable
from functools import partial

from repro.corpus.markup.shown import (
    DROPPED_LINK,
    DROPPED_TAGS,
    entity,
    is_dropped_section,
    tidy,
)

_MAX_DEPTH = 40

# Marks replace constructs until the end, so that the text on both sides is not joined. XML cannot
# contain these characters. The first four replace a comment or template, the limits of a link's or
# tag's text, a line break inside a line, and a dropped tag or link.
_GONE, _SHOWN, _BREAK, _DROPPED = "\x01", "\x02", "\x03", "\x04"
# Marks of brackets that are text although they look like markup.
_LEFT, _RIGHT, _LESS = "\x05", "\x06", "\x07"
# Mark at the limits of an external link's text; such links cannot be nested.
_ADDRESSED = "\x08"
# Marks of characters that look like markup but are text inside <nowiki> and <section>.
_HIDDEN = dict(zip("{}>|=:\n", map(chr, range(0x0E, 0x15)), strict=True))
_HIDDEN |= {"[": _LEFT, "]": _RIGHT, "<": _LESS}
_MARK_TEXTS = {_GONE: "", _SHOWN: "", _BREAK: "\n", _DROPPED: "", _ADDRESSED: ""}
_MARK_TEXTS |= {mark: character for character, mark in _HIDDEN.items()}
_HIDE = str.maketrans(_HIDDEN)
_MARK = re.compile(f"[{re.escape(''.join(_MARK_TEXTS))}]")
_NOTHING = _GONE + _SHOWN + _DROPPED + _ADDRESSED

_COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
# Tags whose contents are not markup; only `section` and `nowiki` show them.
_RAW_TAGS = frozenset(
    [
        *("categorytree", "ce", "chem", "gallery", "graph", "hiero", "imagemap", "inputbox"),
        *("math", "nowiki", "pre", "score", "section", "source", "syntaxhighlight"),
        *("templatedata", "timeline"),
    ]
)
# Repeated groups are not possessive: before Python 3.11.5 such a group may lose its match.
_RAW = re.compile(
    rf"<({'|'.join(sorted(_RAW_TAGS))})(?=[ >])[^<>\n]*+(?<!/)>"
    r"([^<]*+(?:<(?!/?\1[\s/>])[^<]*+)*)</\1>",
    re.IGNORECASE,
)
# A template: a name with a word and without a second line, and any parameters.
_TEMPLATE = re.compile(
    r"\{\{(?<!\{\{\{)(?!\{)[\s\x01]*+[^\s{}\[\]<>|\x01-\x08][^{}\[\]<>|\n\x02-\x08]*+[\s\x01]*+"
    r"(?:\|[^{}]*+)?\}\}"
)
_TABLE = re.compile(r"\n[^\S\n]*+\{\|[^{}]*\n[^\S\n]*\|\}")
# Braces in text without templates: those of a table (in a group), and marks for all others.
_BRACE = re.compile(r"(\{\||\n[^\S\n]*+\|\})|[{}]")
_LONE_BRACES = {"{": "\x15", "}": "\x16"}
_NO_TAG = re.compile(r"<(?=[\s\d.,=<>()-]|https?:)")
_ATTRIBUTES = r"(?:[ \t]++[\w-]++[ \t]?=[ \t]?(?:\"[^\"<>\n]*+\"|[\w%#.;]++))*"
_REFERENCE = re.compile(r"<ref(?=[ />])[^<>\n]*+(?:(?<=/)>|>[^<]*+</ref\s*>)")
# A reference with tags that are opened and never closed inside it.
_UNTIDY_REFERENCE = re.compile(
    rf"<ref(?=[ >])[^<>\n]*+(?<!/)>[^<]*+"
    rf"(?:<(?!/|ref[ />]|(?i:{'|'.join(sorted(_RAW_TAGS))})\b)[^<]*+)*</ref\s*>"
)
_BREAKING = re.compile(rf"<(?:br|hr){_ATTRIBUTES}[ \t]*+/?>", re.IGNORECASE)
_EMPTY_TAG = re.compile(rf"<[a-z][a-z0-9]*+{_ATTRIBUTES}[ \t]*+/>", re.IGNORECASE)
_PAIR = re.compile(rf"<([a-z][a-z0-9]*+){_ATTRIBUTES}[ \t]*+>([^<]*+)</\1\s*>", re.IGNORECASE)
_HEADING = re.compile(r"\n(=++)([^=\n](?:[^\n]*[^=\n])?)(=++)(?=[^=\n]*+(?:\n|\Z))")
_RULE = re.compile(r"\n-{4,}+")
# A term: the first colon after ";" ends it, except inside a link or tag.
_TERM = re.compile(r"\n(?=[*#:]*+;)([*#:;]++)([^\n]*+)")
_TERM_END = re.compile(r"((?:[^:\[\x02]|\[\[[^\[\]]*+\]\]|\x02[^:\[\x02]*+\x02)*):")
# An external link: its address ends at a space, a bracket, a quote, or two apostrophes.
_EXTERNAL = re.compile(
    r"\[(?:(?:https?|ftp):)?//[^\n\[\]<>\" '\x02-\x08]++(?:'(?!')[^\n\[\]<>\" '\x02-\x08]*+)*"
    r" ?([^\[\]\n\x05\x06\x08]*+)\]"
)
_TITLE = r"[^\[\]{}<>\n|:\x01-\x08]++"
_SIMPLE_LINK = re.compile(
    rf"\[\[(?<!\[\[\[)(?:{_TITLE}\||(?={_TITLE}\]\]))([^\[\]\n\x01-\x04]++)\]\]"
)
_LINK = re.compile(r"\[\[(?<!\[\[\[)([^\[\]{}<>\n|\x02-\x08]*+)(?:\|([^\[\]]*+))?\]\]")
_BRACKETS = re.compile(r"\[(?<!\[\[)(?![\[/])([^\[\]\n]*+)\](?!\])")
# An address in the text, which the parser drops, except [//; the second kind needs no slashes.
_ADDRESS = re.compile(
    r":(?://|(?:(?<=news:)|(?<=bitcoin:)|(?<=geo:)|(?<=magnet:)|(?<=mailto:)|(?<=sip:)|(?<=sips:)"
    r"|(?<=sms:)|(?<=tel:)|(?<=urn:)|(?<=xmpp:))(?=[^\s\[\]]))",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(#0*+[0-9]{1,7}|#[xX]0*+[0-9a-fA-F]{1,6}|[A-Za-z0-9]{2,8});")


class _NotWellFormed(Exception):
    """The page has markup that is not well formed."""


def scanned_text(markup: str) -> str | None:
    """Convert well-formed markup to plain text; `repro.corpus.markup.plain.plain_text` has rules.

    Returns
    -------
    str or None
        The text; None if the page needs the parser.
    """
    try:
        text = _without_sections(
            _RULE.sub("\n" + _BREAK, _without_tags(_without_templates(markup)))
        )
        text = _links(_TERM.sub(_replace_term, text))
        return None if _has_address(text) else tidy(_decode(text))
    except _NotWellFormed:
        return None


def _inside_out(step: Callable[[str], str], begin: str, text: str) -> str:
    """Repeat a step that replaces innermost constructs until it changes nothing."""
    for _ in range(_MAX_DEPTH):
        before = text
        if begin in text:
            text = step(text)
        if text == before:
            break
    return text


def _without_templates(markup: str) -> str:
    text = strip_blocks(markup)
    if any(left in text for left in ("{{", "}}", "{|", "\n|}")):
        raise _NotWellFormed
    return text


def strip_blocks(markup: str) -> str:
    """Remove well-formed comments, raw tags, templates and tables.

    Returns
    -------
    str
        A line end and the remaining text, with marks for `replace_marks`.
    """
    text = _COMMENT.sub(lambda found: _GONE if found[1] else found[0], "\n" + markup)
    text = _inside_out(partial(_TEMPLATE.sub, _GONE), "{{", _RAW.sub(_replace_raw, text))
    if "{{" in text or "}}" in text:
        return text
    text = _without_tables(text)
    if "{|" in text:
        text = _BRACE.sub(lambda found: found[1] or _LONE_BRACES[found[0]], text)
        text = _without_tables(text)
        for brace, mark in _LONE_BRACES.items():
            text = text.replace(mark, brace)
    return text


def _without_tables(text: str) -> str:
    return _inside_out(partial(_TABLE.sub, "\n" + _GONE), "{|", text)


def _replace_raw(found: re.Match[str]) -> str:
    name, contents = found[1].lower(), found[2]
    if name not in ("nowiki", "section"):
        return _DROPPED
    # A comment in it would be text, but has been removed.
    return found[0] if _GONE in contents else _SHOWN + contents.translate(_HIDE) + _SHOWN


def _without_tags(text: str) -> str:
    if "<" in text:
        text = _NO_TAG.sub(_LESS, text)
        text = _BREAKING.sub(_BREAK, _REFERENCE.sub(_DROPPED, text))
        text = _without_pairs(_EMPTY_TAG.sub(_DROPPED, text))
    if "<" in text:
        text = _without_pairs(_UNTIDY_REFERENCE.sub(_DROPPED, text))
        if "<" in text:
            raise _NotWellFormed
    return text


def _without_pairs(text: str) -> str:
    return _inside_out(partial(_PAIR.sub, _replace_pair), "<", text)


def _replace_pair(found: re.Match[str]) -> str:
    name, contents = found[1].lower(), found[2]
    # A heading inside a tag does not start a section.
    if name in _RAW_TAGS or "\n=" in contents:
        return found[0]
    if name in DROPPED_TAGS:
        return _DROPPED
    return _SHOWN + contents + _SHOWN


def _without_sections(text: str) -> str:
    parts = _HEADING.split(text)
    texts = [parts[0]]
    dropped_level: int | None = None
    for opening, title, closing, body in zip(*(parts[k::4] for k in range(1, 5)), strict=True):
        # The "=" may have been inside a link.
        if title.count("[") != title.count("]"):
            raise _NotWellFormed
        level = min(len(opening), len(closing), 6)
        if dropped_level is None or level <= dropped_level:
            dropped_level = level if is_dropped_section(_decode(_links(title))) else None
        if dropped_level is None:
            texts.append(body)
    return "\n".join(texts)


def _replace_term(found: re.Match[str]) -> str:
    markers, line = found.groups()
    if _has_address(line):
        raise _NotWellFormed
    if end := _TERM_END.match(line):
        line = end[1] + line[end.end() :]
    elif ":" in line:
        raise _NotWellFormed
    return f"\n{markers}{line}"


def _links(text: str) -> str:
    text = _inside_out(_innermost_links, "[", text)
    if "[[" in text:
        # A link with brackets in its text is not innermost until they are replaced by marks.
        text = _inside_out(_innermost_links, "[", _BRACKETS.sub(rf"{_LEFT}\1{_RIGHT}", text))
    if "[[" in text or "]]" in text:
        raise _NotWellFormed
    return text


def _innermost_links(text: str) -> str:
    # Each pattern has one group, the link's text: `split` alternates other text and link text.
    text = _ADDRESSED.join(_EXTERNAL.split(text))
    text = _SHOWN.join(_SIMPLE_LINK.split(text))
    return _LINK.sub(_replace_link, text)


def _replace_link(found: re.Match[str]) -> str:
    title, shown = found[1], found[2] or ""
    if "\n=" in shown or (_GONE in title and ":" in title):
        return found[0]
    if DROPPED_LINK.match(title):
        return _DROPPED
    # The pipe trick [[A|]] shows the title.
    if not shown.strip(_NOTHING):
        shown = title.lstrip(":")
    return _SHOWN + shown + _SHOWN


def _has_address(text: str) -> bool:
    return "[//" in text or _ADDRESS.search(text) is not None


def _decode(text: str) -> str:
    return replace_marks(_ENTITY.sub(_replace_entity, text))


def replace_marks(text: str) -> str:
    """Replace the marks by the text that they represent."""
    if not _MARK.search(text):
        return text
    for mark, meaning in _MARK_TEXTS.items():
        text = text.replace(mark, meaning)
    return text


def _replace_entity(found: re.Match[str]) -> str:
    shown = entity(found[1]) or found[0]
    if shown in _MARK_TEXTS:
        raise _NotWellFormed
    return shown
