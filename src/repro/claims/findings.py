"""Findings of each source on a claim, joined in a judgement, and the file of all judgements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import TypeAdapter

from repro.claims.published import Claim
from repro.errors import ReproError
from repro.paths import RESULTS

Source = Literal["predicted", "testbed", "cluster"]
Verdict = Literal["reproduced", "same direction", "not reproduced", "not run", "input"]
SOURCES: tuple[Source, ...] = get_args(Source)
# Output of `repro claims --json`.
CLAIMS = RESULTS / "claims.json"


@dataclass(frozen=True)
class Finding:
    """One source's value for a claim and the verdict on it.

    `value` and `interval` are in the claim's unit. For an order or a trend, `value` is the fraction
    of resamples in which it holds and `interval` is None. `reason` states why the claim was not run
    or is an input, or what the source assumes.
    """

    value: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim with the finding of each source; `published` is None for an order or a trend."""

    id: str
    statement: str
    source: str
    section: str
    unit: str
    published: float | None
    findings: dict[Source, Finding]
    note: str

    @property
    def verdicts(self) -> dict[Source, Verdict]:
        """Verdict of each source."""
        return {source: finding.verdict for source, finding in self.findings.items()}


def unanswered(reason: str) -> Finding:
    """Return a finding without a value, with the reason."""
    return Finding(None, None, "not run", reason)


def judgement(claim: Claim, findings: dict[Source, Finding]) -> Judgement:
    """Join a claim with the finding of each source."""
    return Judgement(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        section=claim.section,
        unit=claim.unit,
        published=claim.value,
        findings=findings,
        note=claim.note,
    )


def read_judgements(path: Path = CLAIMS) -> list[Judgement]:
    """Read the output of `repro claims --json`.

    Raises
    ------
    ReproError
        The file is missing, truncated or from another version.
    """
    try:
        read: list[Judgement] = TypeAdapter(list[Judgement]).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ReproError(f"{path}: no verdicts; fix: dvc repro claims") from None
    except ValueError:
        raise ReproError(
            f"{path}: is truncated or from another version; fix: dvc repro claims"
        ) from None
    return read
