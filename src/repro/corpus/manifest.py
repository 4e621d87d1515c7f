"""What the corpus is made of: counts that add up, a file a stage."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from repro.atomic import replace_text
from repro.errors import ReproError

_WIDEST_BAR = 40


def length_class(length: int) -> int:
    """The power of two that a length has reached; 0 for 0."""
    return 1 << length.bit_length() - 1 if length else 0


def write_manifest(path: Path, counts: Mapping[str, int], named: list[str]) -> None:
    """Write counts; those whose names are `group.name` become groups, ordered by name or number.

    Parameters
    ----------
    path
        The file of JSON to write.
    counts
        Numbers by name.
    named
        Lines about single pages.
    """
    manifest: dict[str, Any] = {}
    for name in sorted(counts, key=_order):
        group, _, member = name.partition(".")
        if member:
            manifest.setdefault(group, {})[member] = counts[name]
        else:
            manifest[name] = counts[name]
    replace_text(path, json.dumps(manifest | {"named": named}, indent=1, ensure_ascii=False) + "\n")


def _order(name: str) -> tuple[str, int, str]:
    group, _, member = name.partition(".")
    return group, int(member) if member.isdecimal() else 0, member


def stats(folder: Path) -> Iterator[str]:
    """Show all manifests of a corpus, and that they add up.

    Parameters
    ----------
    folder
        Holds `articles.json`, and a manifest for each family that is tokenized.

    Yields
    ------
    str
        The next line.

    Raises
    ------
    ReproError
        There is no `articles.json`, or pages or articles are lost or double.
    """
    articles = _read(folder / "articles.json")
    yield from _lines("articles", articles)
    dropped = sum(articles.get("dropped", {}).values())
    if articles["pages"] != articles["articles"] + dropped:
        raise ReproError(
            f"{folder}: {articles['pages']} pages are not {articles['articles']} articles and "
            f"{dropped} dropped; run `repro corpus extract` again"
        )
    for path in sorted(folder.glob("*.json")):
        if path.name != "articles.json":
            manifest = _read(path)
            yield from _lines(path.stem, manifest)
            if manifest["documents"] != articles["articles"]:
                raise ReproError(
                    f"{path}: {manifest['documents']} documents of {articles['articles']} "
                    f"articles; run `repro corpus dataset {path.stem}` again"
                )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ReproError(f"{path}: no such file; make it with `repro corpus extract`")
    manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return manifest


def _lines(title: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A line a count; groups that are counted by length are histograms."""
    yield f"{title}:"
    for name, value in manifest.items():
        if name == "named":
            yield from (f"  {line}" for line in value)
        elif not isinstance(value, dict):
            yield f"  {name.replace('_', ' '):24}{value:>18,}"
        else:
            yield f"  {name.replace('_', ' ')}"
            most = max(value.values())
            for member, count in value.items():
                shown = f"{int(member):,} or more" if member.isdecimal() else member
                yield f"    {shown:22}{count:>18,}  {'#' * round(_WIDEST_BAR * count / most)}"
