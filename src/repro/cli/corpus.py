"""Commands of `repro corpus`: Megatron's datasets from an English Wikipedia dump."""

from pathlib import Path
from typing import Annotated

import typer

from repro.paths import ENWIKI, find

app = typer.Typer(help="Make Megatron's datasets from an English Wikipedia dump.")

_DUMP = ENWIKI / "dump.xml.bz2"
_ARTICLES = ENWIKI / "articles.jsonl"
_MANIFESTS = ENWIKI / "manifests"
_UNJOINED = "done; when all shares are done, run the command again without --share to join them"
_ShareOption = Annotated[
    str, typer.Option(help="Part for one of several jobs, JOB/JOBS: 0/16 to 15/16.")
]
_FamilyArgument = Annotated[str, typer.Argument(help="Model family: gpt, bert or t5.")]


@app.command("dump")
def corpus_dump() -> None:
    """Write the dump that params/corpus.yaml names to data/enwiki/."""
    from repro.corpus.config import read_corpus_config
    from repro.corpus.dump import fetch_dump

    typer.echo(fetch_dump(read_corpus_config(find("params/corpus.yaml")), _DUMP))


@app.command("extract", epilog="Example: repro corpus extract --share 0/16")
def corpus_extract(share: _ShareOption = "0/1") -> None:
    """Write the plain text of the dump's articles to data/enwiki/articles.jsonl."""
    from repro.corpus.articles import extract_articles
    from repro.corpus.config import read_corpus_config
    from repro.corpus.shards import Share

    config = read_corpus_config(find("params/corpus.yaml"))
    done = extract_articles(
        _DUMP,
        _ARTICLES,
        _MANIFESTS / "articles.json",
        min_article_characters=config.min_article_characters,
        workers=config.workers,
        share=Share.parse(share),
    )
    typer.echo(_ARTICLES if done else _UNJOINED)


@app.command("tokenizer", epilog="Example: repro corpus tokenizer gpt")
def corpus_tokenizer(family: _FamilyArgument) -> None:
    """Write a model family's tokenizer to data/enwiki/tokenizers/.

    It is trained on the articles unless params/corpus.yaml names an existing one.
    """
    from repro.corpus.config import check_family, read_corpus_config
    from repro.corpus.pretrained_tokenizers import import_tokenizer
    from repro.corpus.vocabulary import train_tokenizer

    name = check_family(family)
    config = read_corpus_config(find("params/corpus.yaml"))
    target = ENWIKI / "tokenizers" / f"{name}.json"
    if name in config.tokenizer_files:
        made = import_tokenizer(name, Path(config.tokenizer_files[name]).expanduser(), target)
    else:
        size = config.vocabulary_sizes.of(name)
        made = train_tokenizer(name, _ARTICLES, target, vocabulary_size=size)
    typer.echo(made)


@app.command("dataset", epilog="Example: repro corpus dataset gpt")
def corpus_dataset(family: _FamilyArgument, share: _ShareOption = "0/1") -> None:
    """Write the tokenized articles as a model family's indexed dataset to data/enwiki/datasets/."""
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
        workers=read_corpus_config(find("params/corpus.yaml")).workers,
        share=Share.parse(share),
    )
    typer.echo(f"{prefix}.bin, {prefix}.idx" if done else _UNJOINED)


@app.command("stats")
def corpus_stats() -> None:
    """Print the corpus's counts of pages, dropped pages by reason, tokens and lengths."""
    from repro.corpus.manifest import stats

    for line in stats(_MANIFESTS):
        typer.echo(line)
