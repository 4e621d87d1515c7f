"""Parser for JSON that may be truncated because its writer was killed."""

import json
import re
from collections.abc import Iterator
from typing import Any

from repro.errors import ReproError

_BETWEEN = re.compile(r"[\s,]*")
# JSON that ends early, has numbers of too many digits, or too many levels.
_NOT_READ = (ValueError, RecursionError)


def read_json(text: str, items: str, skipped: list[str]) -> dict[str, Any]:
    """Parse a JSON object, which may be truncated.

    A truncated one gives the keys before its list `items`, and the complete items of that list.
    `skipped` then gets an entry with the character at which the text ends.

    Raises
    ------
    ReproError
        The text is JSON, but not an object, or `items` is not a list.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as problem:
        skipped.append(f"character {problem.pos + 1}: the file ends early ({problem.msg})")
        return _complete_items(text, items)
    except _NOT_READ as problem:
        raise ReproError(f"is no JSON that can be read ({problem})") from None
    if not isinstance(content, dict):
        raise ReproError(f"is a JSON {type(content).__name__}; fix: use a file with a JSON object")
    if not isinstance(content.get(items, []), list):
        raise ReproError(f"{items} is a JSON {type(content[items]).__name__}; must be a list")
    return content


def _complete_items(text: str, items: str) -> dict[str, Any]:
    found = re.search(rf',?\s*"{items}"\s*:\s*\[', text)
    if not found:
        return {}
    try:
        content: dict[str, Any] = json.loads(text[: found.start()] + "}")
    except _NOT_READ:
        return {}
    content[items] = []
    decoder, at = json.JSONDecoder(), found.end()
    while between := _BETWEEN.match(text, at):
        try:
            item, at = decoder.raw_decode(text, between.end())
        except _NOT_READ:
            break
        content[items].append(item)
    return content


def json_values(text: str, skipped: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield JSON values that follow one another, each with its place; prefixes are skipped.

    A value that is not complete is added to `skipped`, and reading resumes at the next line that
    begins an object.
    """
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        place = f"character {at + 1}"
        try:
            value, at = decoder.raw_decode(text, at)
        except _NOT_READ as problem:
            skipped.append(f"{place}: is no JSON object ({str(problem).partition(':')[0]})")
            following = re.compile(r"\n[^{\n]*(?=\{\s*\")").search(text, at)
            if following is None:
                return
            at = following.end()
        else:
            yield place, value
