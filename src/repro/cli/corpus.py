"""`repro corpus`: from an English Wikipedia dump to Megatron's datasets."""

from pathlib import Path
from typing import Annotated

import typer

from repro.paths import ENWIKI, PARAMS

app = typer.Typer(help="From an English Wikipedia dump to Megatron's datasets.")

_DUMP = ENWIKI / "dump.xml.bz2"
_ARTICLES = ENWIKI / "articles.jsonl"
_MANIFESTS = ENWIKI / "manifests"
_OTHERS = "done; once all shares are, run it again without --share"
_ShareOption = Annotated[
    str, typer.Option(help="The part to do in one of several jobs: 0/16, to 15/16.")
]


@app.command("dump")
def corpus_dump() -> None:
    """Obtain the dump that params/corpus.yaml names."""
    from repro.corpus.config import read_corpus_config
    from repro.corpus.dump import fetch_dump

    typer.echo(fetch_dump(read_corpus_config(PARAMS / "corpus.yaml"), _DUMP))


@app.command("extract")
def corpus_extract(share: _ShareOption = "0/1") -> None:
    """Extract the plain text of the dump's articles."""
    from repro.corpus.articles import extract_articles
    from repro.corpus.config import read_corpus_config
    from repro.corpus.shards import Share

    config = read_corpus_config(PARAMS / "corpus.yaml")
    done = extract_articles(
        _DUMP,
        _ARTICLES,
        _MANIFESTS / "articles.json",
        min_article_characters=config.min_article_characters,
        workers=config.workers,
        share=Share.parse(share),
    )
    typer.echo(_ARTICLES if done else _OTHERS)


@app.command("tokenizer")
def corpus_tokenizer(family: str) -> None:
    """Train the tokenizer of a model family (gpt, bert, t5), or take an existing one."""
    from repro.corpus.config import check_family, read_corpus_config
    from repro.corpus.pretrained_tokenizers import take_tokenizer
    from repro.corpus.vocabulary import train_tokenizer

    name = check_family(family)
    config = read_corpus_config(PARAMS / "corpus.yaml")
    target = ENWIKI / "tokenizers" / f"{name}.json"
    if name in config.tokenizer_files:
        made = take_tokenizer(name, Path(config.tokenizer_files[name]).expanduser(), target)
    else:
        size = config.vocabulary_sizes.of(name)
        made = train_tokenizer(name, _ARTICLES, target, vocabulary_size=size)
    typer.echo(made)


@app.command("dataset")
def corpus_dataset(family: str, share: _ShareOption = "0/1") -> None:
    """Tokenize the articles into the indexed dataset of a model family (gpt, bert, t5)."""
    from repro.corpus.config import check_family, read_corpus_config
    from repro.corpus.indexed import write_indexed
    from repro.corpus.shards import Share

    name = check_family(family)
    prefix = ENWIKI / "datasets" / name
    done = write_indexed(
        name,
        _ARTICLES,
        ENWIKI / "tokenizers" / f"{name}.json",
        prefix,
        _MANIFESTS / f"{name}.json",
        workers=read_corpus_config(PARAMS / "corpus.yaml").workers,
        share=Share.parse(share),
    )
    typer.echo(f"{prefix}.bin, {prefix}.idx" if done else _OTHERS)


@app.command("stats")
def corpus_stats() -> None:
    """Show what the corpus is made of: pages, drops and their reasons, tokens, lengths."""
    from repro.corpus.manifest import stats

    for line in stats(_MANIFESTS):
        typer.echo(line)
