"""Speed of extraction and tokenization, compared with a reference pipeline and with a limit.

The input is a multistream dump of the excerpt's pages, repeated. Words that the excerpt has once
are replaced by other words in each repetition, because longer texts have new words. Each round
runs three pipelines in sequence on the same cores:

- ours;
- reference: wikiextractor, then one `Tokenizer.encode` per sentence in a process pool and
  Megatron's builder, as in Megatron-LM's `preprocess_data.py`;
- limit: bzip2 alone, and `encode_batch` alone on our articles.

Prints medians over rounds by wall clock and by CPU time, which depends less on other processes,
and a projection for the full dump.

wikiextractor (AGPL) is not a dependency: `pip install --target FOLDER --no-deps wikiextractor`.

    python benchmarks/corpus.py --wikiextractor FOLDER --family gpt --json
"""

import argparse
import bz2
import json
import math
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median

from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from tokenizers import Tokenizer

from repro.corpus.articles import extract_articles
from repro.corpus.indexed import write_indexed
from repro.corpus.records import read_articles
from repro.corpus.sentences import split_sentences
from repro.corpus.streams import stream_groups
from repro.corpus.tokenizer import LocalTokenizer
from repro.paths import ENWIKI

_WORD = re.compile(rb"\b([a-z]{4,})\b")
_VOWELS, _CONSONANTS = b"aeiou", b"bcdfghjklmnpqrstvwxz"
_BATCH = 1000
_FULL_DUMP_GB = 20.4
_CORES = (2, 16, 56)
_WIKIEXTRACTOR = "from wikiextractor.WikiExtractor import main; main()"


def _replicate(excerpt: Path, dump: Path, megabytes: float) -> int:
    """Write the excerpt's pages repeatedly; return the size of the XML in bytes."""
    head, begin, rest = bz2.decompress(excerpt.read_bytes()).partition(b"  <page>\n")
    pages, end, _ = (begin + rest).rpartition(b"</mediawiki>")
    words = _WORD.split(pages)
    counts = Counter(words[1::2])
    rare = {n: words[n] for n in range(1, len(words), 2) if counts[words[n]] == 1}
    repetitions = math.ceil(megabytes * 1e6 / len(pages))
    with dump.open("wb") as file:
        file.write(bz2.compress(head))
        for number in range(repetitions):
            vowels, consonants = _rotated(_VOWELS, number), _rotated(_CONSONANTS, number // 5)
            letters = bytes.maketrans(_VOWELS + _CONSONANTS, vowels + consonants)
            for n, word in rare.items():
                words[n] = word.translate(letters)
            file.write(bz2.compress(b"".join(words)))
        file.write(bz2.compress(end + b"\n"))
    return repetitions * len(pages)


def _rotated(letters: bytes, by: int) -> bytes:
    by %= len(letters)
    return letters[by:] + letters[:by]


def _reference_extraction(wikiextractor: Path, dump: Path, output: Path, cores: int) -> None:
    options = ["--json", "--no-templates", "--processes", str(cores), "-b", "10G", "-q"]
    subprocess.run(
        [sys.executable, "-c", _WIKIEXTRACTOR, str(dump), "-o", str(output), *options],
        env=os.environ | {"PYTHONPATH": str(wikiextractor)},
        stderr=subprocess.DEVNULL,
        check=True,
    )


def _reference_tokenization(texts: Path, tokenizer: Path, prefix: Path, cores: int) -> None:
    local = LocalTokenizer(tokenizer)
    dtype = DType.optimal_dtype(local.vocab_size)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    context = multiprocessing.get_context("fork")
    with context.Pool(cores, _set_tokenizer, (tokenizer,)) as pool, texts.open() as lines:
        for sequences in pool.imap(_encode_document, lines, 32):
            tokens = [token for sequence in sequences for token in sequence]
            builder.add_document(tokens, [len(sequence) for sequence in sequences])
    builder.finalize(f"{prefix}.idx")


def _set_tokenizer(path: Path) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = Tokenizer.from_file(str(path))


def _encode_document(line: str) -> list[list[int]]:
    sentences = split_sentences(json.loads(line)["text"])
    return [_encoder.encode(sentence, add_special_tokens=False).ids for sentence in sentences]


def _decompress(groups: list[tuple[int, int]], dump: Path, cores: int) -> None:
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        pool.starmap(_decompress_group, [(dump, *group) for group in groups], chunksize=1)


def _decompress_group(dump: Path, start: int, end: int) -> int:
    with dump.open("rb") as file:
        file.seek(start)
        return len(bz2.decompress(file.read(end - start)))


def _encode_batches(articles: Path, tokenizer: Path) -> None:
    encoder = Tokenizer.from_file(str(tokenizer))
    texts: Iterator[str] = (article.text for article in read_articles(articles, "limit"))
    while batch := list(islice(texts, _BATCH)):
        encoder.encode_batch(batch, add_special_tokens=False)


def _timed(step: Callable[[], object]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of a step in its own process, including child processes."""
    process = multiprocessing.get_context("fork").Process(target=step)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    process.start()
    process.join()
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    if process.exitcode:
        sys.exit(f"a step exited with code {process.exitcode}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ended - begun, cpu_s


def main() -> None:
    """Make the dump, time the pipelines in each round, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--wikiextractor", type=Path, required=True, help="folder of its installation"
    )
    parser.add_argument("--family", default="gpt", choices=["gpt", "bert", "t5"])
    parser.add_argument("--megabytes", type=float, default=200, help="size of the XML")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print results as one line of JSON")
    given = parser.parse_args()
    tokenizer = ENWIKI / "tokenizers" / f"{given.family}.json"
    os.environ["RAYON_NUM_THREADS"] = str(given.cores)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        dump, articles, prefix = scratch / "dump.bz2", scratch / "a.jsonl", scratch / given.family
        reference = scratch / "reference"
        megabytes = _replicate(ENWIKI / "dump.xml.bz2", dump, given.megabytes) / 1e6
        groups = list(stream_groups(dump, 2 << 20) or [])
        steps: dict[str, Callable[[], object]] = {
            "our extraction": lambda: extract_articles(
                dump,
                articles,
                scratch / "articles.json",
                min_article_characters=500,
                workers=given.cores,
            ),
            "our tokenization": lambda: write_indexed(
                given.family, articles, tokenizer, prefix, scratch / "m.json", workers=given.cores
            ),
            "reference extraction": lambda: _reference_extraction(
                given.wikiextractor, dump, reference, given.cores
            ),
            "reference tokenization": lambda: _reference_tokenization(
                reference / "AA" / "wiki_00", tokenizer, scratch / "reference-tokens", given.cores
            ),
            "limit: bzip2": lambda: _decompress(groups, dump, given.cores),
            "limit: encode_batch": lambda: _encode_batches(articles, tokenizer),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for _ in range(given.rounds):
            for name, step in steps.items():
                found[name].append(_timed(step))
        tokens = json.loads((scratch / "m.json").read_text())["tokens"]
        compressed_mb = dump.stat().st_size / 1e6
    wall_s, cpu_s = ({n: median(s[k] for s in found[n]) for n in found} for k in (0, 1))
    for name in found:
        rate, effort = megabytes / wall_s[name], megabytes / cpu_s[name]
        print(
            f"{name:22} {rate:7.1f} MB/s of XML on {given.cores} cores, {effort:6.1f} MB per CPU s"
        )
    sums = [
        {
            kind: sum(s for n, s in seconds.items() if n.startswith(kind))
            for kind in ("our", "reference", "limit")
        }
        for seconds in (wall_s, cpu_s)
    ]
    core_s = given.cores * sums[0]["our"]
    for cores in _CORES:
        hours = _FULL_DUMP_GB * 1e3 / compressed_mb * core_s / cores / 3600
        print(f"{_FULL_DUMP_GB} GB of dump on {cores} cores, projected: {hours:.1f} h")
    result = {
        "ratio_to_reference": sums[0]["reference"] / sums[0]["our"],
        "fraction_of_limit": sums[0]["limit"] / sums[0]["our"],
        "mb_per_s": megabytes / core_s,
        "tokens_per_s": tokens / core_s,
        "ratio_to_reference_by_cpu": sums[1]["reference"] / sums[1]["our"],
        "fraction_of_limit_by_cpu": sums[1]["limit"] / sums[1]["our"],
    }
    if given.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name} {value:.3g}")


if __name__ == "__main__":
    main()
