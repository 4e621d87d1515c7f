"""One article of the corpus, and the file of JSON lines that holds them all."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from repro.errors import ReproError

_MEND = "make it with `repro corpus extract`"


@dataclass(frozen=True)
class Article:
    """One article as plain text.

    Attributes
    ----------
    id
        Wikipedia's number of the page.
    title
        The title; it is not part of the text.
    text
        Paragraphs and list items, one a line.
    """

    id: int
    title: str
    text: str


def to_line(article: Article) -> str:
    """Write an article as one line of JSON.

    Parameters
    ----------
    article
        The article.

    Returns
    -------
    str
        The line, with its newline.
    """
    return json.dumps(asdict(article), ensure_ascii=False) + "\n"


def read_articles(articles: Path, purpose: str) -> Iterator[Article]:
    """Stream the corpus.

    Parameters
    ----------
    articles
        A file of lines as `to_line` writes them.
    purpose
        What the reader does with them; it labels the progress bar.

    Yields
    ------
    Article
        The next article.

    Raises
    ------
    ReproError
        The file is missing or empty, or a line is no article.
    """
    size = size_of(articles)
    with (
        articles.open("rb") as file,
        tqdm(total=size, unit="B", unit_scale=True, desc=purpose, disable=None) as bar,
    ):
        for number, line in enumerate(file, start=1):
            article = _read(line, articles, f"line {number}")
            bar.update(len(line))
            yield article


def articles_between(articles: Path, start: int, end: int) -> Iterator[Article]:
    """Read the articles whose lines begin from byte `start` up to `end`; see `read_articles`."""
    with articles.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        while (at := file.tell()) < end and (line := file.readline()):
            yield _read(line, articles, f"the line at byte {at}")


def size_of(articles: Path) -> int:
    """Size of the corpus in bytes; a `ReproError` if it is missing or empty."""
    if not articles.is_file():
        raise ReproError(f"{articles}: no such file; {_MEND}")
    if size := articles.stat().st_size:
        return size
    raise ReproError(f"{articles}: empty; {_MEND}")


def _read(line: bytes, articles: Path, where: str) -> Article:
    try:
        return Article(**json.loads(line))
    except (ValueError, TypeError):
        raise ReproError(f"{articles}: {where} is no article; {_MEND}") from None
