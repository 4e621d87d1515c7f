"""Pages of a dump's XML, read one at a time in bounded memory."""

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

LARGEST_PAGE_BYTES = 16 << 20
"""Limit on a page's XML. MediaWiki limits the markup of a page to 2 MiB."""

_OPEN, _CLOSE = b"<page>", b"</page>"
# Marks a page that was truncated; XML cannot contain these bytes.
_TRUNCATED = b"\0cut\0"
_HEAD_BYTES = 4096
# Dumps made before 2013 mark a redirect by its text alone.
_REDIRECT = re.compile(r"\s*#redirect", re.IGNORECASE)
_TITLE = re.compile(rb"<title>([^<]*)</title>")


@dataclass(frozen=True)
class Page:
    """One article as it is in the dump.

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
    """A page that is left out: the reason, and the title (`?` if it is not readable)."""

    def __init__(self, reason: str, title: str = "?") -> None:
        super().__init__(reason, title)
        self.reason = reason
        self.title = title


def cut_pages(
    pieces: Iterable[bytes], next_pieces: Iterable[bytes] = ()
) -> Generator[bytes, None, bytes]:
    """Cut XML after each page.

    Parameters
    ----------
    pieces
        XML in pieces of any size; it may start inside a page.
    next_pieces
        XML after `pieces`, read only to the end of a page that started before it.

    Yields
    ------
    bytes
        The XML up to the next closing tag, without the tag; truncated if it is larger than
        `LARGEST_PAGE_BYTES`.

    Returns
    -------
    bytes
        The XML after the last page.
    """
    rest = b""
    for piece in pieces:
        *complete, rest = (rest + piece).split(_CLOSE)
        yield from complete
        rest = _truncate(rest)
    for piece in next_pieces:
        if _OPEN not in rest and not any(rest.endswith(_OPEN[:n]) for n in range(1, len(_OPEN))):
            break
        rest, closed, after = (rest + piece).partition(_CLOSE)
        if closed:
            yield rest
            return after
        rest = _truncate(rest)
    return rest


def _truncate(rest: bytes) -> bytes:
    if len(rest) <= LARGEST_PAGE_BYTES:
        return rest
    # The last bytes may be the beginning of the closing tag.
    return rest[:_HEAD_BYTES] + _TRUNCATED + rest[-len(_CLOSE) :]


def begins_page(cut: bytes) -> bool:
    """Return whether a page starts in one of `cut_pages`' results."""
    return _OPEN in cut


def read_pages(cut: bytes) -> Iterator[Page | Dropped]:
    """Read one of `cut_pages`' results: an article, or the reason why it is dropped.

    Only bytes inside a page's own tags are parsed. A document type is therefore never declared,
    nor an entity that refers to a file or to other entities.

    Yields
    ------
    Page or Dropped
        One, and one more for each preceding page without a closing tag.
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
    if _TRUNCATED in xml or len(xml) > LARGEST_PAGE_BYTES:
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
