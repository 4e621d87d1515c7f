"""Articles of the corpus and the JSON-lines file that holds them."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from repro.errors import ReproError

_FIX = "fix: run `repro corpus extract`"


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
        Paragraphs and list items, one per line.
    """

    id: int
    title: str
    text: str


def to_line(article: Article) -> str:
    """Return an article as one line of JSON, with its newline."""
    return json.dumps(asdict(article), ensure_ascii=False) + "\n"


def read_articles(articles: Path, label: str) -> Iterator[Article]:
    """Read the corpus article by article.

    Parameters
    ----------
    articles
        A file of lines as `to_line` returns them.
    label
        Label of the progress bar.

    Yields
    ------
    Article
        The next article.

    Raises
    ------
    ReproError
        The file is missing or empty, or a line is not an article.
    """
    size = size_of(articles)
    with (
        articles.open("rb") as file,
        tqdm(total=size, unit="B", unit_scale=True, desc=label, disable=None) as bar,
    ):
        for number, line in enumerate(file, start=1):
            article = _parse(line, articles, f"line {number}")
            bar.update(len(line))
            yield article


def articles_between(articles: Path, start: int, end: int) -> Iterator[Article]:
    """Read the articles whose lines start at byte `start` or later, before byte `end`."""
    with articles.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()
        while (at := file.tell()) < end and (line := file.readline()):
            yield _parse(line, articles, f"the line at byte {at}")


def size_of(articles: Path) -> int:
    """Return the size of the corpus in bytes; raise a `ReproError` if it is missing or empty."""
    if not articles.is_file():
        raise ReproError(f"{articles}: no such file; {_FIX}")
    if size := articles.stat().st_size:
        return size
    raise ReproError(f"{articles}: empty; {_FIX}")


def _parse(line: bytes, articles: Path, where: str) -> Article:
    try:
        return Article(**json.loads(line))
    except (ValueError, TypeError):
        raise ReproError(f"{articles}: {where} is not an article; {_FIX}") from None
