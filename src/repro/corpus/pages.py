"""Stream the articles of a compressed Wikipedia dump, in bounded memory."""

import bz2
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import ParseError

import mwxml
from mwxml.element_iterator import ElementIterator
from mwxml.errors import MalformedXML
from tqdm import tqdm

from repro.errors import ReproError, one_line

# Dumps made before 2013 mark a redirect by its text alone.
_REDIRECT = re.compile(r"\s*#redirect", re.IGNORECASE)


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


def iterate_pages(dump: Path) -> Iterator[Page]:
    """Read the articles of a dump in order: namespace 0, no redirects.

    Parameters
    ----------
    dump
        A `*-pages-articles.xml.bz2`, of one stream or many.

    Yields
    ------
    Page
        The next article. A bar shows how much of the compressed file has been read.

    Raises
    ------
    ReproError
        The file is missing, or its bzip2 or XML is truncated or corrupt.
    """
    if not dump.is_file():
        raise ReproError(f"{dump}: no such file; make it with `repro corpus dump`")
    size = dump.stat().st_size
    pages = 0
    with (
        dump.open("rb") as raw,
        bz2.open(raw) as stream,
        tqdm(total=size, unit="B", unit_scale=True, desc="extract", disable=None) as bar,
    ):
        try:
            root = ElementIterator.from_file(stream)
            if root.tag != "mediawiki":
                raise MalformedXML(f"the root is <{root.tag}>, not <mediawiki>")
            for item in mwxml.Dump.from_element(root).pages:
                pages += 1
                page = _article(item)
                # mwxml leaves every page that it has read, emptied, below the root.
                root.element.clear()
                bar.update(raw.tell() - bar.n)
                if page is not None:
                    yield page
        except (EOFError, OSError, ParseError, MalformedXML, ValueError, TypeError) as error:
            # mwxml appends what comes next in the file; the parser's own words come first.
            reason = one_line(error)[:80] or type(error).__name__
            raise ReproError(
                f"{dump}: damaged or no Wikipedia dump ({reason}) after {pages} pages and "
                f"{raw.tell()} of {size} bytes; delete it and run `repro corpus dump` again"
            ) from None


def _article(item: mwxml.Page) -> Page | None:
    # The revisions are read from the same stream: they must be consumed before the next page.
    markup = ""
    for revision in item:
        markup = revision.text or ""
    if item.namespace != 0 or item.redirect is not None or _REDIRECT.match(markup):
        return None
    return Page(item.id, item.title, markup)
