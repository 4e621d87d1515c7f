"""Wiki markup to plain text by substitution, where all of a page's markup is well formed.

Innermost constructs go first, each in one pass over the text; passes are few and linear. What then
still looks like markup was not well formed, and the page is left to the parser, whose text this
one's is otherwise.
"""

import re
from collections.abc import Callable

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
_NOTHING = _GONE + _SHOWN + _DROPPED + _ADDRESSED
_MARK = re.compile("[\x01-\x08\x0e-\x1f]")

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
_NO_TAG = re.compile(r"<(?=[\s\d.,=<>()-]|https?:)")
_ATTRIBUTES = r"(?:[ \t]++[\w-]++[ \t]?=[ \t]?(?:\"[^\"<>\n]*+\"|[\w%#.;]++))*"
_REFERENCE = re.compile(r"<ref(?=[ />])[^<>\n]*+(?:(?<=/)>|>[^<]*+</ref\s*>)")
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
_SIMPLE_LINK = re.compile(
    r"\[\[(?<!\[\[\[)(?:([^\[\]{}<>\n|:\x01-\x08]++)"
    r"|[^\[\]{}<>\n|:\x01-\x08]++\|([^\[\]\n\x01-\x04]++))\]\]"
)
_LINK = re.compile(r"\[\[(?<!\[\[\[)([^\[\]{}<>\n|\x02-\x08]*+)(?:\|([^\[\]]*+))?\]\]")
_BRACKETS = re.compile(r"\[(?<!\[\[)(?![\[/])([^\[\]\n]*+)\](?!\])")
# An address in the text, which the parser drops; the second kind needs no slashes.
_ADDRESS = re.compile(
    r"\[//|:(?://|(?:(?<=news:)|(?<=bitcoin:)|(?<=geo:)|(?<=magnet:)|(?<=mailto:)|(?<=sip:)|(?<=sips:)"
    r"|(?<=sms:)|(?<=tel:)|(?<=urn:)|(?<=xmpp:))(?=[^\s\[\]]))",
    re.IGNORECASE,
)
_MARK_OR_ENTITY = re.compile(
    r"[\x01-\x08\x0e-\x1f]|&(#0*+[0-9]{1,7}|#[xX]0*+[0-9a-fA-F]{1,6}|[A-Za-z0-9]{2,8});"
)


class _NotTaken(Exception):
    """The page is left to the parser."""


def scanned_text(markup: str) -> str | None:
    """Turn well-formed markup into plain text; `repro.corpus.markup.plain.plain_text` says how.

    Returns
    -------
    str or None
        None if the page is not taken.
    """
    if _MARK.search(markup):
        return None
    try:
        text = _without_sections(
            _RULE.sub("\n" + _BREAK, _without_tags(_without_templates(markup)))
        )
        text = _links(_TERM.sub(_term, text))
    except _NotTaken:
        return None
    return None if _ADDRESS.search(text) else tidy(_meant(text))


def _inside_out(
    pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], text: str
) -> str:
    for _ in range(_DEEPEST):
        before = text
        text = pattern.sub(replacement, text)
        if text == before:
            break
    return text


def _without_templates(markup: str) -> str:
    """Take away comments, what is no markup, templates and tables; begin with a line's end."""
    text = _COMMENT.sub(lambda found: _GONE if found[1] else "<!", "\n" + markup)
    text = _inside_out(_TEMPLATE, _GONE, _RAW.sub(_raw, text))
    if "{{" in text or "}}" in text:
        raise _NotTaken
    if "{|" in text:
        text = _inside_out(_TABLE, "\n" + _GONE, text)
    if "{|" in text or "\n|}" in text:
        raise _NotTaken
    return text


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
        text = _inside_out(_PAIR, _pair, _EMPTY_TAG.sub(_DROPPED, text))
        if "<" in text:
            raise _NotTaken
    return text


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
    if _ADDRESS.search(line):
        raise _NotTaken
    if end := _TERM_END.match(line):
        line = end[1] + line[end.end() :]
    elif ":" in line:
        raise _NotTaken
    return f"\n{markers}{line}"


def _links(text: str) -> str:
    text = _inside_out_links(text)
    if "[[" in text:
        # Brackets inside a link's text keep it from being innermost.
        text = _inside_out_links(_BRACKETS.sub(rf"{_LEFT}\1{_RIGHT}", text))
    if "[[" in text or "]]" in text:
        raise _NotTaken
    return text


def _inside_out_links(text: str) -> str:
    for _ in range(_DEEPEST):
        before = text
        text = _EXTERNAL.sub(rf"{_ADDRESSED}\1{_ADDRESSED}", text)
        text = _SIMPLE_LINK.sub(rf"{_SHOWN}\1\2{_SHOWN}", text)
        text = _LINK.sub(_link, text)
        if text == before:
            break
    return text


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


def _meant(text: str) -> str:
    return _MARK_OR_ENTITY.sub(_meaning, text)


def _meaning(found: re.Match[str]) -> str:
    if found[1]:
        return entity(found[1]) or found[0]
    return _MEANT[found[0]]
