"""The pages of a dump's XML, one at a time and in bounded memory."""

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

LARGEST_PAGE_BYTES = 16 << 20
"""Bytes of XML. MediaWiki takes no more than 2 MiB of markup for a page."""

_OPEN, _CLOSE = b"<page>", b"</page>"
# Stands where a page was cut short; no XML holds it.
_CUT = b"\0cut\0"
_HEAD_BYTES = 4096
# Dumps made before 2013 mark a redirect by its text alone.
_REDIRECT = re.compile(r"\s*#redirect", re.IGNORECASE)
_TITLE = re.compile(rb"<title>([^<]*)</title>")


@dataclass(frozen=True)
class Page:
    """One article as the dump has it.

    Attributes
    ----------
    id
        Wikipedia's number of the page.
    title
        The title.
    markup
        The wiki markup of the newest revision in the dump.
    """

    id: int
    title: str
    markup: str


class Dropped(Exception):
    """A page that is not taken: its title as far as it is known, and one of a few reasons."""

    def __init__(self, reason: str, title: str = "?") -> None:
        super().__init__(reason, title)
        self.reason = reason
        self.title = title


def cut_pages(
    pieces: Iterable[bytes], following: Iterable[bytes] = ()
) -> Generator[bytes, None, bytes]:
    """Cut XML after each page.

    Parameters
    ----------
    pieces
        XML in pieces of any size; it may begin inside a page.
    following
        What comes after them: read only to the end of a page that began before.

    Yields
    ------
    bytes
        What is between two pages, and a page without its closing tag; cut short where they are
        larger than `LARGEST_PAGE_BYTES`.

    Returns
    -------
    bytes
        What follows the last page.
    """
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(_CLOSE)
        yield from whole
        rest = _bounded(rest)
    for piece in following:
        if _OPEN not in rest and not any(rest.endswith(_OPEN[:n]) for n in range(1, len(_OPEN))):
            break
        rest, closed, after = (rest + piece).partition(_CLOSE)
        if closed:
            yield rest
            return after
        rest = _bounded(rest)
    return rest


def _bounded(rest: bytes) -> bytes:
    if len(rest) <= LARGEST_PAGE_BYTES:
        return rest
    # The last bytes may be the beginning of the closing tag.
    return rest[:_HEAD_BYTES] + _CUT + rest[-len(_CLOSE) :]


def begins_page(cut: bytes) -> bool:
    """Tell whether a page begins in what `cut_pages` gave."""
    return _OPEN in cut


def read_pages(cut: bytes) -> Iterator[Page | Dropped]:
    """Read what `cut_pages` gave: one article, or the reason why there is none.

    Nothing outside a page's own tags is ever parsed, so no document type, and with it no entity
    that refers to a file or to other entities, can be declared.

    Yields
    ------
    Page or Dropped
        One, and one more for each page before it that has no closing tag.
    """
    _, *pages = cut.split(_OPEN)
    for broken in pages[:-1]:
        yield Dropped("invalid XML", _title(broken))
    xml = pages[-1] if pages else b""
    try:
        yield _read_page(xml)
    except Dropped as dropped:
        yield Dropped(dropped.reason, _title(xml))


def _read_page(xml: bytes) -> Page:
    if _CUT in xml or len(xml) > LARGEST_PAGE_BYTES:
        raise Dropped("too large")
    try:
        page = ElementTree.fromstring(_OPEN + xml + _CLOSE)
        number, namespace = int(page.findtext("id", "")), int(page.findtext("ns", ""))
    except (ElementTree.ParseError, ValueError):
        raise Dropped("invalid XML") from None
    if namespace != 0:
        raise Dropped("other namespace")
    markup = ""
    for text in page.iterfind("revision/text"):
        markup = text.text or ""
    if page.find("redirect") is not None or _REDIRECT.match(markup):
        raise Dropped("redirect")
    return Page(number, page.findtext("title", ""), markup)


def _title(xml: bytes) -> str:
    found = _TITLE.search(xml)
    return found[1].decode(errors="replace") if found else "?"
