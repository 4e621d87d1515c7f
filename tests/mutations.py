"""Random changes of lines, for tests of readers."""

import random
from collections.abc import Sequence


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
