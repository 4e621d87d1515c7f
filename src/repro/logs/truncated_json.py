"""Parser for JSON that may be truncated because its writer was killed."""

import json
import re
from typing import Any

from repro.errors import ReproError

_BETWEEN = re.compile(r"[\s,]*")


def read_json(text: str, items: str, skipped: list[str]) -> dict[str, Any]:
    """Parse a JSON object, which may be truncated.

    A truncated one gives the keys before its list `items`, and the complete items of that list.
    `skipped` then gets an entry with the character at which the text ends.

    Raises
    ------
    ReproError
        The text is JSON, but not an object.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as problem:
        skipped.append(f"character {problem.pos + 1}: the file ends early ({problem.msg})")
        return _complete_items(text, items)
    if not isinstance(content, dict):
        raise ReproError(f"is a JSON {type(content).__name__}; fix: use a file with a JSON object")
    return content


def _complete_items(text: str, items: str) -> dict[str, Any]:
    found = re.search(rf',?\s*"{items}"\s*:\s*\[', text)
    if not found:
        return {}
    try:
        content: dict[str, Any] = json.loads(text[: found.start()] + "}")
    except json.JSONDecodeError:
        return {}
    content[items] = []
    decoder, at = json.JSONDecoder(), found.end()
    while between := _BETWEEN.match(text, at):
        try:
            item, at = decoder.raw_decode(text, between.end())
        except json.JSONDecodeError:
            break
        content[items].append(item)
    return content
