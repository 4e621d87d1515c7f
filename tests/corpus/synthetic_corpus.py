"""Made-up pages and prose, and what the tests call them by."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from repro.corpus.records import Article

HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en">\n'
    "<siteinfo><sitename>Wikipedia</sitename><namespaces>"
    '<namespace key="0" case="first-letter" /></namespaces></siteinfo>\n'
)
TAIL = "</mediawiki>\n"


@dataclass(frozen=True)
class FakePage:
    id: int
    markup: str
    namespace: int = 0
    redirect: bool = False

    @property
    def title(self) -> str:
        return f"Page {self.id}"

    def xml(self) -> str:
        redirect = '<redirect title="Other" />' if self.redirect else ""
        return (
            f"<page><title>{self.title}</title><ns>{self.namespace}</ns><id>{self.id}</id>"
            f"{redirect}<revision><id>1</id><timestamp>2016-04-22T10:19:33Z</timestamp>"
            f"<contributor><ip>0.0.0.0</ip></contributor><model>wikitext</model>"
            f'<format>text/x-wiki</format><text xml:space="preserve">{escape(self.markup)}</text>'
            f"<sha1>x</sha1></revision></page>\n"
        )


MakeDump = Callable[..., Path]


def words(seed: int, count: int) -> list[str]:
    """Make words that look like words: few syllables, many repeats."""
    source = random.Random(seed)
    syllables = [a + b for a in "bcdfglmnprstv" for b in ("a", "e", "i", "o", "u", "an", "er")]
    lexicon = ["".join(source.choices(syllables, k=source.randint(1, 4))) for _ in range(1500)]
    return source.choices(lexicon, weights=[1 / (1 + i) for i in range(1500)], k=count)


def prose(seed: int, sentences: int = 20) -> str:
    """Make paragraphs of made-up sentences, with numbers, quotes and letters beyond ASCII."""
    source = random.Random(seed)
    stream = iter(words(seed, sentences * 16))
    lines = []
    for _ in range(sentences):
        sentence = [next(stream) for _ in range(source.randint(3, 14))]
        sentence.insert(source.randrange(len(sentence)), source.choice(["1906", "café", '"so"']))
        lines.append(" ".join(sentence).capitalize() + source.choice([".", "?", "!"]))
        lines.append(source.choice([" ", " ", " ", "\n"]))
    return "".join(lines).strip()


@dataclass(frozen=True)
class Corpus:
    """A data folder with everything in it that training reads, and the articles it was made of."""

    data_dir: Path
    articles: list[Article]

    def tokenizer(self, family: str) -> Path:
        return self.data_dir / "tokenizers" / f"{family}.json"

    def prefix(self, family: str) -> Path:
        return self.data_dir / "datasets" / family
