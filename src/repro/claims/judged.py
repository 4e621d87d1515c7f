"""Verdicts that were kept: `results/claims.json`, which `repro claims --json` makes."""

import json
from pathlib import Path

from pydantic import TypeAdapter

from repro.claims.verdicts import Judgement
from repro.errors import ReproError
from repro.paths import RESULTS

CLAIMS = RESULTS / "claims.json"


def read_judgements(path: Path = CLAIMS) -> list[Judgement]:
    """Read every verdict.

    Raises
    ------
    ReproError
        There are none yet.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReproError(f"{path}: no verdicts; `repro claims --json` prints them") from None
    kept: list[Judgement] = TypeAdapter(list[Judgement]).validate_python(rows)
    return kept
