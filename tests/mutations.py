"""Random changes of lines, bytes and trees, for tests of readers."""

import random
from collections.abc import Sequence
from typing import Any


def mutated(line: str, chosen: random.Random, pieces: Sequence[str], others: Sequence[str]) -> str:
    """Return a line that is cut, lacks some characters, has pieces put in, or ends as another."""
    at, kind = chosen.randrange(len(line) + 1), chosen.randrange(5)
    if kind == 0:
        return line[:at]
    if kind == 1:
        return line[:at] + chosen.choice(pieces) + line[at:]
    if kind == 2:
        return line[:at] + line[at + chosen.randrange(8) :]
    if kind == 3:
        return line[:at] + chosen.choice(others)
    return line[:at] + chosen.choice(pieces) * chosen.randrange(30) + line[at:]


def mutated_bytes(data: bytes, chosen: random.Random) -> bytes:
    """Return bytes that are cut, lack some, or have others, such as the ends of integers."""
    at, kind = chosen.randrange(len(data) + 1), chosen.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + chosen.randrange(1, 200) :]
    if kind == 2:
        return data[:at] + bytes([chosen.randrange(256)]) + data[at + 1 :]
    size = chosen.choice((1, 4, 8))
    return data[:at] + chosen.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * size + data[at + size :]


def mutated_tree(tree: Any, chosen: random.Random, values: Sequence[Any]) -> Any:
    """Return a tree of lists and mappings of which one node has another value, key or place."""
    if not tree or not isinstance(tree, dict | list) or chosen.randrange(6) == 0:
        return chosen.choice(values)
    if isinstance(tree, list):
        at = chosen.randrange(len(tree))
        return [*tree[:at], mutated_tree(tree[at], chosen, values), *tree[at + 1 :]]
    name, kind = chosen.choice(list(tree)), chosen.randrange(5)
    if kind == 0:
        return {one: value for one, value in tree.items() if one != name}
    if kind == 1:
        return {**tree, f"{name}x": tree[name]}
    return {**tree, name: mutated_tree(tree[name], chosen, values)}
