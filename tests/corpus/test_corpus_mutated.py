"""Mutated pages are read or dropped with a reason; nothing else comes out, and all of them end.

A million of them, half of the pages pieces of the excerpt's, from a seed that was not tried yet:

    python tests/corpus/test_corpus_mutated.py 1000000 SEED
"""

import bz2
import random
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import pytest
from synthetic_corpus import FakePage
from tqdm import tqdm

from repro.corpus.markup.parsed import UnreadableMarkup
from repro.corpus.markup.plain import plain_text
from repro.corpus.pages import Page, cut_pages, read_pages
from repro.paths import ENWIKI

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


def mutate(seed: int, count: int, markups: Sequence[str] = (_MARKUP,)) -> Counter[str]:
    """Read `count` mutated pages; give how many ended how."""
    source = random.Random(seed)
    ended: Counter[str] = Counter()
    for _ in range(count):
        markup = source.choice(markups)
        # Of mutated XML little is left to read; mutated markup is XML all the same.
        if source.random() < 0.5:
            markup = _mutated(source, markup.encode()).decode(errors="ignore").replace("\0", "")
            xml = FakePage(1, markup).xml().encode()
        else:
            xml = _mutated(source, FakePage(1, markup).xml().encode())
        for cut in cut_pages([xml[: len(xml) // 2], xml[len(xml) // 2 :]]):
            for found in read_pages(cut):
                how = "read"
                if isinstance(found, Page):
                    try:
                        plain_text(found.markup).encode()
                    except UnreadableMarkup:
                        how = "unreadable markup"
                else:
                    how = found.reason
                ended[how] += 1
    return ended


def _mutated(source: random.Random, given: bytes) -> bytes:
    data = bytearray(given)
    for _ in range(source.randint(1, 6)):
        at = source.randrange(len(data) + 1)
        data[at : at + source.choice([0, 0, 1, 30])] = source.choice(_PARTS)
    return bytes(data)


@pytest.mark.parametrize("seed", range(3))
def test_mutated_pages_are_read_or_dropped(seed: int) -> None:
    ended = mutate(seed, 1000)
    assert set(ended) <= {"read", "invalid XML", "other namespace", "redirect", "unreadable markup"}
    assert min(ended["read"], ended["invalid XML"]) > 200


def excerpts(seed: int, each: int = 10, characters: int = 500) -> list[str]:
    """Cut pieces of the excerpt's articles, and take the page above as many times."""
    source = random.Random(seed)
    pieces = []
    for cut in cut_pages([bz2.decompress((ENWIKI / "dump.xml.bz2").read_bytes())]):
        for page in read_pages(cut):
            if isinstance(page, Page):
                starts = source.choices(range(len(page.markup)), k=each)
                pieces += [page.markup[at : at + characters] for at in starts]
    return pieces + [_MARKUP] * len(pieces)


if __name__ == "__main__":
    pages, seed, batch = int(sys.argv[1]), int(sys.argv[2]), 1000
    seeds = range(seed, seed + pages // batch)
    total: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        made = pool.map(mutate, seeds, repeat(batch), repeat(excerpts(seed)))
        for ended in tqdm(made, total=len(seeds), unit="batch"):
            total += ended
    print(f"{pages} mutated pages from seed {seed}:", dict(total))
