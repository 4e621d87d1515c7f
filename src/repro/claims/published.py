"""Published claims as they stand in `data/published/claims.csv`."""

import csv
from dataclasses import dataclass

from repro.paths import PUBLISHED

# The documents whose claims are judged; the others are about other clusters and models.
DOCUMENTS = ("hoti2023", "micro2024", "gpt350m", "abstracts", "perfmodel")


@dataclass(frozen=True)
class Claim:
    """One claim of one document.

    Attributes
    ----------
    id, source, section, statement
        Its number, its document (a key of `sources.csv`), where it stands there and what it says.
    value, unit, comparator
        The number claimed (None where an order or a trend is), its unit, and how it is meant:
        eq, ratio, le ("up to"), ge, range_lo and range_hi, ordering, trend.
    note
        What reading the document closely says about it: contradictions, what it leaves open.
    """

    id: str
    source: str
    section: str
    statement: str
    value: float | None
    unit: str
    comparator: str
    note: str


def read_claims() -> list[Claim]:
    """All published claims, in the order of their ids."""
    with (PUBLISHED / "claims.csv").open(newline="", encoding="utf-8") as file:
        return [
            Claim(
                id=row["id"],
                source=row["source"],
                section=row["section"],
                statement=row["statement"],
                value=float(row["value"]) if row["value"] else None,
                unit=row["unit"],
                comparator=row["comparator"],
                note=row["notes"],
            )
            for row in csv.DictReader(file)
        ]


def documented_claims() -> list[Claim]:
    """All claims of the documents under study, also those that nothing here answers yet."""
    return [claim for claim in read_claims() if claim.source in DOCUMENTS]


def read_sources() -> dict[str, str]:
    """The documents by key: title and venue."""
    with (PUBLISHED / "sources.csv").open(newline="", encoding="utf-8") as file:
        return {row["key"]: f"{row['title']} ({row['venue']})" for row in csv.DictReader(file)}
