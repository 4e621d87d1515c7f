"""Content of the excerpt's articles as extracted by this package, wikiextractor and gensim.

Each text's words are aligned with the words of the page's markup, which shows the part (list,
caption, template, ...) that each word comes from. Prints the number of words per part and text,
and the longest passages that only one of two texts has.

Neither is a dependency. Install both with

    pip install --target FOLDER --no-deps wikiextractor gensim smart_open wrapt

    python benchmarks/extraction.py --tools FOLDER
"""

import argparse
import bz2
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

from tqdm import tqdm

from repro.corpus.markup.plain import plain_text
from repro.corpus.markup.shown import is_dropped_section
from repro.corpus.pages import Page, cut_pages, read_pages
from repro.paths import ENWIKI

_WIKIEXTRACTOR = "from wikiextractor.WikiExtractor import main; main()"
_GENSIM = """
import json, sys
from gensim.corpora.wikicorpus import filter_wiki
json.dump({name: filter_wiki(markup) for name, markup in json.load(sys.stdin).items()}, sys.stdout)
"""
_WORD = re.compile(r"\w+")
# In markup a word may continue after a link's end or quotes: [[cat]]s.
_MARKUP_WORD = re.compile(r"\w+(?:(?:\]\]|''+)\w+)*")
_INSIDE_WORD = re.compile(r"\]\]|''+")
_HEADING = re.compile(r"^(=+)(.*?)\1[^\S\n]*$", re.MULTILINE)
# Parts of the markup; a later rule overrides an earlier one.
_PARTS = {
    "list": r"^[*#:;].*$",
    "link's target": r"\[\[[^\[\]|]*\||\[(?:https?:)?//[^\s\]]*|https?://[^\s\]|}<]*",
    "heading": _HEADING.pattern,
}
_PAIRED = {"table": (r"\{\|", r"\|\}"), "template": (r"\{\{", r"\}\}"), "": (r"\[\[", r"\]\]")}
_ENCLOSED = {
    "reference": r"<ref[^<>/]*>.*?</ref>",
    "formula, code, gallery": r"<(math|source|gallery|timeline|pre|code|imagemap)\b[^<>]*>.*?</\1>",
    "comment": r"<!--.*?-->",
}
_LINKS = {
    "caption": re.compile(r"\[\[\s*(?:file|image|media):", re.IGNORECASE),
    "category, other language": re.compile(r"\[\[(?:Category|[a-z]{2,3}(?:-[a-z]+)*|simple):"),
}
_SHOWN_CHARACTERS = 300


def _parts(markup: str) -> list[str]:
    """Return the part of the markup that each character belongs to."""
    parts = ["paragraph"] * len(markup)

    def mark(name: str, start: int, end: int) -> None:
        parts[start:end] = [name] * (end - start)

    for name, pattern in _PARTS.items():
        for found in re.finditer(pattern, markup, re.MULTILINE):
            mark(name, *found.span())
    for name, (begin, end) in _PAIRED.items():
        for start, stop in _outermost(begin, end, markup):
            kinds = [kind for kind, link in _LINKS.items() if link.match(markup, start)]
            for kind in [name] if name else kinds:
                mark(kind, start, stop)
    for name, pattern in _ENCLOSED.items():
        for found in re.finditer(pattern, markup, re.DOTALL | re.IGNORECASE):
            mark(name, *found.span())
    level = None
    headings = [*_HEADING.finditer(markup), None]
    for heading, following in pairwise(headings):
        assert heading is not None
        if level is None or len(heading[1]) <= level:
            level = len(heading[1]) if is_dropped_section(heading[2]) else None
        if level is not None:
            mark("sources", heading.start(), following.start() if following else len(markup))
    return parts


def _outermost(begin: str, end: str, markup: str) -> Iterator[tuple[int, int]]:
    depth = start = 0
    for found in re.finditer(f"({begin})|{end}", markup):
        if found[1]:
            start = start if depth else found.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                yield start, found.end()


def _texts(pages: list[Page], tools: Path) -> dict[str, dict[str, str]]:
    """Return the texts of each extractor, by page number."""
    environment = os.environ | {"PYTHONPATH": str(tools)}
    given = json.dumps({str(page.id): page.markup for page in pages})
    done = subprocess.run(
        [sys.executable, "-c", _GENSIM],
        env=environment,
        input=given,
        capture_output=True,
        check=True,
        text=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        dump = str(ENWIKI / "dump.xml.bz2")
        options = ["--json", "--no-templates", "-b", "10G", "-q", "-o", folder]
        command = [sys.executable, "-c", _WIKIEXTRACTOR, dump, *options]
        subprocess.run(command, env=environment, check=True)
        lines = (Path(folder) / "AA" / "wiki_00").read_text(encoding="utf-8").splitlines()
    theirs = {article["id"]: article["text"] for article in map(json.loads, lines)}
    ours = {str(page.id): plain_text(page.markup) for page in pages}
    return {"ours": ours, "wikiextractor": theirs, "gensim": json.loads(done.stdout)}


def main() -> None:
    """Align the words of all texts with the markup, and print the counts and passages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", type=Path, required=True, help="folder of both installations")
    given = parser.parse_args()
    cuts = cut_pages([bz2.decompress((ENWIKI / "dump.xml.bz2").read_bytes())])
    pages = [page for cut in cuts for page in read_pages(cut) if isinstance(page, Page)]
    texts = _texts(pages, given.tools)
    counts = {name: Counter[str]() for name in ["markup", *texts]}
    passages: dict[tuple[str, str], list[str]] = defaultdict(list)
    for page in tqdm(pages):
        parts = _parts(page.markup)
        found = list(_MARKUP_WORD.finditer(page.markup))
        words = [_INSIDE_WORD.sub("", word[0]) for word in found]
        part = [parts[word.start()] for word in found]
        counts["markup"].update(part)
        placed = {}
        for name, by_page in texts.items():
            shown = _WORD.findall(by_page[str(page.id)])
            blocks = SequenceMatcher(None, shown, words).get_matching_blocks()
            placed[name] = {block.b + k for block in blocks for k in range(block.size)}
            counts[name].update(part[n] for n in placed[name])
            counts[name]["not found in the markup"] += len(shown) - len(placed[name])
        for name in list(texts)[1:]:
            for kind, only in (
                (f"only {name}", placed[name] - placed["ours"]),
                (f"not {name}", placed["ours"] - placed[name]),
            ):
                for start in (n for n in only if n - 1 not in only):
                    end = start
                    while end + 1 in only and part[end + 1] == part[start]:
                        end += 1
                    passage = page.markup[found[start].start() : found[end].end()]
                    passages[part[start], kind].append(f"{page.title}: {passage}")
    print("| part of the markup | " + " | ".join(counts) + " |\n" + "| --- " * 5 + "|")
    for name in sorted(set().union(*counts.values()), key=lambda name: -counts["ours"][name]):
        print(f"| {name} | " + " | ".join(f"{count[name]:,}" for count in counts.values()) + " |")
    for (name, kind), found_passages in sorted(passages.items()):
        longest = sorted(found_passages, key=len)[-3:]
        print(f"\n{name}, {kind}, {len(found_passages)} passages, such as")
        for passage in longest:
            print("   ", passage[:_SHOWN_CHARACTERS].replace("\n", " / "))


if __name__ == "__main__":
    main()
