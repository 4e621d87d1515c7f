"""Manifests: counts of pages, articles, documents and tokens, one file per stage."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from repro.atomic import replace_text
from repro.errors import ReproError, of_file, one_line

_BAR_CHARACTERS = 40
_MANIFEST = TypeAdapter(dict[str, NonNegativeInt | dict[str, NonNegativeInt] | list[str]])
_MOST_DIGITS = 20


def length_class(length: int) -> int:
    """Return the largest power of two that is not above a length; 0 for 0."""
    return 1 << length.bit_length() - 1 if length else 0


def write_manifest(path: Path, counts: Mapping[str, int], named: list[str]) -> None:
    """Write counts as JSON; names of the form `group.name` are grouped and sorted.

    Parameters
    ----------
    path
        The JSON file to write.
    counts
        Counts by name.
    named
        Lines about single pages.
    """
    manifest: dict[str, Any] = {}
    for name in sorted(counts, key=_sort_key):
        group, _, member = name.partition(".")
        if member:
            manifest.setdefault(group, {})[member] = counts[name]
        else:
            manifest[name] = counts[name]
    replace_text(path, json.dumps(manifest | {"named": named}, indent=1, ensure_ascii=False) + "\n")


def _sort_key(name: str) -> tuple[str, int, str]:
    group, _, member = name.partition(".")
    return group, int(member) if _is_length(member) else 0, member


def _is_length(member: str) -> bool:
    return member.isdecimal() and len(member) <= _MOST_DIGITS


def stats(folder: Path) -> Iterator[str]:
    """Format all manifests of a corpus, and check that their counts add up.

    Parameters
    ----------
    folder
        Folder of `articles.json` and of a manifest for each tokenized family.

    Yields
    ------
    str
        The next line.

    Raises
    ------
    ReproError
        There is no `articles.json`, or pages or articles are missing or counted twice.
    """
    articles = _read(folder / "articles.json", "pages", "articles")
    yield from _format("articles", articles)
    by_reason = articles.get("dropped")
    dropped = sum(by_reason.values()) if isinstance(by_reason, dict) else 0
    if articles["pages"] != articles["articles"] + dropped:
        raise ReproError(
            f"{folder}: {articles['pages']} pages are not {articles['articles']} articles and "
            f"{dropped} dropped; fix: run `repro corpus extract` again"
        )
    for path in sorted(folder.glob("*.json")):
        if path.name != "articles.json":
            manifest = _read(path, "documents")
            yield from _format(path.stem, manifest)
            if manifest["documents"] != articles["articles"]:
                raise ReproError(
                    f"{path}: {manifest['documents']} documents of {articles['articles']} "
                    f"articles; fix: run `repro corpus dataset {path.stem}` again"
                )


def _read(path: Path, *counts: str) -> dict[str, Any]:
    """Read a manifest, which must have some counts."""
    if not path.is_file():
        raise ReproError(f"{path}: no such file; fix: run `repro corpus extract`")
    with of_file(path, "run `repro corpus extract` and `repro corpus dataset` again"):
        try:
            manifest: dict[str, Any] = _MANIFEST.validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "(top)"
            raise ReproError(one_line(f"{place}: {first['msg']}")) from None
        for name in counts:
            if not isinstance(manifest.get(name), int):
                raise ReproError(f"{name}: no count")
    return manifest


def _format(title: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Format a manifest: one line per count; counts by length are histograms."""
    yield f"{title}:"
    for name, value in manifest.items():
        if isinstance(value, list):
            yield from (f"  {line}" for line in value)
        elif not isinstance(value, dict):
            yield f"  {name.replace('_', ' '):24}{value:>18,}"
        else:
            yield f"  {name.replace('_', ' ')}"
            most = max(value.values(), default=0) or 1
            for member, count in value.items():
                text = f"{int(member):,} or more" if _is_length(member) else member
                yield f"    {text:22}{count:>18,}  {'#' * round(_BAR_CHARACTERS * count / most)}"
