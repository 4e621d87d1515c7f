"""JSON of a program that was killed while it wrote: what is whole of it."""

import json
import re
from typing import Any

from repro.errors import ReproError

_BETWEEN = re.compile(r"[\s,]*")


def read_json(text: str, items: str, skipped: list[str]) -> dict[str, Any]:
    """A JSON object, also one that ends early.

    Of such a one: what stands before its list `items`, and that list's items that are whole.
    `skipped` then gets one entry, with the character at which it breaks off.

    Raises
    ------
    ReproError
        It is JSON, but no object.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as problem:
        skipped.append(f"character {problem.pos + 1}: the file ends early ({problem.msg})")
        return _beginning(text, items)
    if not isinstance(content, dict):
        raise ReproError(f"is a JSON {type(content).__name__}; wanted is an object")
    return content


def _beginning(text: str, items: str) -> dict[str, Any]:
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
