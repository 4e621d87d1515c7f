"""Mutated pages are read or dropped with a reason; nothing else comes out, and all of them end."""

import random

import pytest
from synthetic_corpus import FakePage

from repro.corpus.markup.parsed import UnreadableMarkup
from repro.corpus.markup.plain import plain_text
from repro.corpus.pages import Page, cut_pages, read_pages

_MARKUP = (
    "'''A''' is {{lang|el|[[b|c]]}}.<ref name=x>{{cite|t=[http://e.org d]}}</ref>\n{| class=w\n|-\n"
    "| 1 || 2\n|}\n== See also ==\n* [[File:f.jpg|thumb|caption [[e]]]]\n; t : u <!-- v -->\n"
    '&nbsp;<math>x</math> <nowiki>[[y]]</nowiki><br /><div style="a">z</div>'
)
_PARTS = [
    *(b"{{", b"}}", b"[[", b"]]", b"<", b">", b"&lt;", b"&gt;", b"&amp;", b"&x;", b"\xff", b"\0"),
    *(
        b"<page>",
        b"</page>",
        b"<text>",
        b"</text>",
        b"<ns>",
        b"]]>",
        b"<![CDATA[",
        b"|",
        b"\n",
        b"=",
    ),
    *(b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&#0;", b"&#xD800;", b"\xed\xa0\x80", b"&lt;ref&gt;"),
]


def mutate(seed: int, count: int) -> dict[str, int]:
    """Read `count` mutated pages; give how many ended how."""
    source = random.Random(seed)
    page = FakePage(1, _MARKUP).xml().encode()
    ended: dict[str, int] = {}
    for _ in range(count):
        xml = bytearray(page)
        for _ in range(source.randint(1, 6)):
            at = source.randrange(len(xml))
            xml[at : at + source.choice([0, 0, 1, 30])] = source.choice(_PARTS)
        for cut in cut_pages([bytes(xml[: len(xml) // 2]), bytes(xml[len(xml) // 2 :])]):
            for found in read_pages(cut):
                how = "read"
                if isinstance(found, Page):
                    try:
                        plain_text(found.markup).encode()
                    except UnreadableMarkup:
                        how = "unreadable markup"
                else:
                    how = found.reason
                ended[how] = ended.get(how, 0) + 1
    return ended


@pytest.mark.parametrize("seed", range(3))
def test_mutated_pages_are_read_or_dropped(seed: int) -> None:
    ended = mutate(seed, 1000)
    assert set(ended) <= {"read", "invalid XML", "other namespace", "redirect", "unreadable markup"}
    assert min(ended["read"], ended["invalid XML"]) > 20
