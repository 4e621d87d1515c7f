"""Verdicts that were kept: `results/claims.json`, which `repro claims --json` makes."""

from pathlib import Path

from pydantic import TypeAdapter

from repro.claims.findings import Judgement
from repro.errors import ReproError
from repro.paths import RESULTS

CLAIMS = RESULTS / "claims.json"


def read_judgements(path: Path = CLAIMS) -> list[Judgement]:
    """Read every verdict.

    Raises
    ------
    ReproError
        There are none yet, or the file was cut short or made by another version.
    """
    try:
        kept: list[Judgement] = TypeAdapter(list[Judgement]).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ReproError(f"{path}: no verdicts; fix: dvc repro claims") from None
    except ValueError:
        raise ReproError(
            f"{path}: is truncated or from another version; fix: dvc repro claims"
        ) from None
    return kept
