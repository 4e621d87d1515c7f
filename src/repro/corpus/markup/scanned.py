"""Wiki markup to plain text by substitution, where all of a page's markup is well formed.

Innermost constructs go first, each in one pass over the text; passes are few and linear. What then
still looks like markup was not well formed, and the page is left to the parser, whose text this
one's is otherwise.
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

_DEEPEST = 40

# What stands for a construct until the end, so that what was apart does not come together: for a
# comment or template, around what a link or tag shows, for a line break inside a line, and for a
# tag or link that is dropped. No XML holds these characters.
_GONE, _SHOWN, _BREAK, _DROPPED = "\x01", "\x02", "\x03", "\x04"
# For what is text although it looks like markup: brackets of either kind, and all in <nowiki>.
_LEFT, _RIGHT, _LESS = "\x05", "\x06", "\x07"
# Around what a link to an address shows: there is none inside another.
_ADDRESSED = "\x08"
_HIDDEN = dict(zip("{}>|=:\n", map(chr, range(0x0E, 0x15)), strict=True))
_HIDDEN |= {"[": _LEFT, "]": _RIGHT, "<": _LESS}
_MEANT = {_GONE: "", _SHOWN: "", _BREAK: "\n", _DROPPED: "", _ADDRESSED: ""}
_MEANT |= {mark: character for character, mark in _HIDDEN.items()}
_HIDE = str.maketrans(_HIDDEN)
_MARK = re.compile(f"[{re.escape(''.join(_MEANT))}]")
_NOTHING = _GONE + _SHOWN + _DROPPED + _ADDRESSED

_COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
# Their contents are no markup; `section` and `nowiki` show theirs.
_RAW_TAGS = frozenset(
    [
        *("categorytree", "ce", "chem", "gallery", "graph", "hiero", "imagemap", "inputbox"),
        *("math", "nowiki", "pre", "score", "section", "source", "syntaxhighlight"),
        *("templatedata", "timeline"),
    ]
)
# Repeated groups are not possessive: before Python 3.11.5 such a one may lose what it matched.
_RAW = re.compile(
    rf"<({'|'.join(sorted(_RAW_TAGS))})(?=[ >])[^<>\n]*+(?<!/)>"
    r"([^<]*+(?:<(?!/?\1[\s/>])[^<]*+)*)</\1>",
    re.IGNORECASE,
)
# A name that has a word and no second line, and any parameters.
_TEMPLATE = re.compile(
    r"\{\{(?<!\{\{\{)(?!\{)[\s\x01]*+[^\s{}\[\]<>|\x01-\x08][^{}\[\]<>|\n\x02-\x08]*+[\s\x01]*+"
    r"(?:\|[^{}]*+)?\}\}"
)
_TABLE = re.compile(r"\n[^\S\n]*+\{\|[^{}]*\n[^\S\n]*\|\}")
# Where there are no templates, braces; those of a table, and what stands for others meanwhile.
_BRACE = re.compile(r"(\{\||\n[^\S\n]*+\|\})|[{}]")
_LONE_BRACES = {"{": "\x15", "}": "\x16"}
_NO_TAG = re.compile(r"<(?=[\s\d.,=<>()-]|https?:)")
_ATTRIBUTES = r"(?:[ \t]++[\w-]++[ \t]?=[ \t]?(?:\"[^\"<>\n]*+\"|[\w%#.;]++))*"
_REFERENCE = re.compile(r"<ref(?=[ />])[^<>\n]*+(?:(?<=/)>|>[^<]*+</ref\s*>)")
# Tags that are begun in one and never closed are its text.
_UNTIDY_REFERENCE = re.compile(
    rf"<ref(?=[ >])[^<>\n]*+(?<!/)>[^<]*+"
    rf"(?:<(?!/|ref[ />]|(?i:{'|'.join(sorted(_RAW_TAGS))})\b)[^<]*+)*</ref\s*>"
)
_BREAKING = re.compile(rf"<(?:br|hr){_ATTRIBUTES}[ \t]*+/?>", re.IGNORECASE)
_EMPTY_TAG = re.compile(rf"<[a-z][a-z0-9]*+{_ATTRIBUTES}[ \t]*+/>", re.IGNORECASE)
_PAIR = re.compile(rf"<([a-z][a-z0-9]*+){_ATTRIBUTES}[ \t]*+>([^<]*+)</\1\s*>", re.IGNORECASE)
_HEADING = re.compile(r"\n(=++)([^=\n](?:[^\n]*[^=\n])?)(=++)(?=[^=\n]*+(?:\n|\Z))")
_RULE = re.compile(r"\n-{4,}+")
# The first colon after ";" ends a term, but not one inside a link or tag.
_TERM = re.compile(r"\n(?=[*#:]*+;)([*#:;]++)([^\n]*+)")
_TERM_END = re.compile(r"((?:[^:\[\x02]|\[\[[^\[\]]*+\]\]|\x02[^:\[\x02]*+\x02)*):")
# An address ends at a space, a bracket, a quote, or a pair of apostrophes.
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
# An address in the text, which the parser drops, but for [//; the second kind needs no slashes.
_ADDRESS = re.compile(
    r":(?://|(?:(?<=news:)|(?<=bitcoin:)|(?<=geo:)|(?<=magnet:)|(?<=mailto:)|(?<=sip:)|(?<=sips:)"
    r"|(?<=sms:)|(?<=tel:)|(?<=urn:)|(?<=xmpp:))(?=[^\s\[\]]))",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(#0*+[0-9]{1,7}|#[xX]0*+[0-9a-fA-F]{1,6}|[A-Za-z0-9]{2,8});")


class _NotTaken(Exception):
    """The page is left to the parser."""


def scanned_text(markup: str) -> str | None:
    """Turn well-formed markup into plain text; `repro.corpus.markup.plain.plain_text` says how.

    Returns
    -------
    str or None
        None if the page is not taken.
    """
    try:
        text = _without_sections(
            _RULE.sub("\n" + _BREAK, _without_tags(_without_templates(markup)))
        )
        text = _links(_TERM.sub(_term, text))
        return None if _has_address(text) else tidy(_meant(text))
    except _NotTaken:
        return None


def _inside_out(step: Callable[[str], str], begin: str, text: str) -> str:
    """Take away what is innermost, again and again, while something begins."""
    for _ in range(_DEEPEST):
        before = text
        if begin in text:
            text = step(text)
        if text == before:
            break
    return text


def _without_templates(markup: str) -> str:
    text = reduced(markup)
    if any(left in text for left in ("{{", "}}", "{|", "\n|}")):
        raise _NotTaken
    return text


def reduced(markup: str) -> str:
    """Take away comments, what is no markup, templates and tables, where they are well formed.

    Returns
    -------
    str
        The rest after a line's end, with marks for `unmarked`.
    """
    text = _COMMENT.sub(lambda found: _GONE if found[1] else found[0], "\n" + markup)
    text = _inside_out(partial(_TEMPLATE.sub, _GONE), "{{", _RAW.sub(_raw, text))
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


def _raw(found: re.Match[str]) -> str:
    name, contents = found[1].lower(), found[2]
    if name not in ("nowiki", "section"):
        return _DROPPED
    # A comment in it is text, but is gone.
    return found[0] if _GONE in contents else _SHOWN + contents.translate(_HIDE) + _SHOWN


def _without_tags(text: str) -> str:
    if "<" in text:
        text = _NO_TAG.sub(_LESS, text)
        text = _BREAKING.sub(_BREAK, _REFERENCE.sub(_DROPPED, text))
        text = _without_pairs(_EMPTY_TAG.sub(_DROPPED, text))
    if "<" in text:
        text = _without_pairs(_UNTIDY_REFERENCE.sub(_DROPPED, text))
        if "<" in text:
            raise _NotTaken
    return text


def _without_pairs(text: str) -> str:
    return _inside_out(partial(_PAIR.sub, _pair), "<", text)


def _pair(found: re.Match[str]) -> str:
    name, contents = found[1].lower(), found[2]
    # A heading inside a tag is no section's.
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
        # "=" may have been inside a link.
        if title.count("[") != title.count("]"):
            raise _NotTaken
        level = min(len(opening), len(closing), 6)
        if dropped_level is None or level <= dropped_level:
            dropped_level = level if is_dropped_section(_meant(_links(title))) else None
        if dropped_level is None:
            texts.append(body)
    return "\n".join(texts)


def _term(found: re.Match[str]) -> str:
    markers, line = found.groups()
    if _has_address(line):
        raise _NotTaken
    if end := _TERM_END.match(line):
        line = end[1] + line[end.end() :]
    elif ":" in line:
        raise _NotTaken
    return f"\n{markers}{line}"


def _links(text: str) -> str:
    text = _inside_out(_innermost_links, "[", text)
    if "[[" in text:
        # Brackets inside a link's text keep it from being innermost.
        text = _inside_out(_innermost_links, "[", _BRACKETS.sub(rf"{_LEFT}\1{_RIGHT}", text))
    if "[[" in text or "]]" in text:
        raise _NotTaken
    return text


def _innermost_links(text: str) -> str:
    # One group each, what is shown: split, text alternates with it.
    text = _ADDRESSED.join(_EXTERNAL.split(text))
    text = _SHOWN.join(_SIMPLE_LINK.split(text))
    return _LINK.sub(_link, text)


def _link(found: re.Match[str]) -> str:
    title, shown = found[1], found[2] or ""
    if "\n=" in shown or (_GONE in title and ":" in title):
        return found[0]
    if DROPPED_LINK.match(title):
        return _DROPPED
    # [[A|]] is the pipe trick: it shows the title.
    if not shown.strip(_NOTHING):
        shown = title.lstrip(":")
    return _SHOWN + shown + _SHOWN


def _has_address(text: str) -> bool:
    return "[//" in text or _ADDRESS.search(text) is not None


def _meant(text: str) -> str:
    return unmarked(_ENTITY.sub(_entity, text))


def unmarked(text: str) -> str:
    """Put in the place of marks what they stand for."""
    if not _MARK.search(text):
        return text
    for mark, meaning in _MEANT.items():
        text = text.replace(mark, meaning)
    return text


def _entity(found: re.Match[str]) -> str:
    shown = entity(found[1]) or found[0]
    if shown in _MEANT:
        raise _NotTaken
    return shown
