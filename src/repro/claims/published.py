"""Published claims in `data/published/`, and what this project knows about each of them."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from repro.catalog.reading import choose
from repro.paths import PUBLISHED

# Documents whose claims are judged; the others are about other clusters and models.
DOCUMENTS = ("hoti2023", "micro2024", "gpt350m", "abstracts", "perfmodel")


@dataclass(frozen=True)
class Claim:
    """One claim of one document.

    Attributes
    ----------
    id, source, section, statement
        Number, document (a key of `sources.csv`), place in it and text.
    value, unit, comparator
        Published number (None for an order or a trend), its unit and its meaning: eq, ratio, le
        ("up to"), ge, range_lo, range_hi, ordering or trend.
    note
        Contradictions in the document and what it leaves open.
    facts
        Rows of `claim_facts.csv` by fact and source; an empty source means all sources.
    """

    id: str
    source: str
    section: str
    statement: str
    value: float | None
    unit: str
    comparator: str
    note: str
    facts: Mapping[tuple[str, str], str] = field(hash=False)

    def fact(self, name: str, source: str = "") -> str:
        """Return what is known about the claim on a source; empty if nothing is."""
        return self.facts.get((name, source)) or self.facts.get((name, ""), "")

    @property
    def neutral(self) -> float | None:
        """Value that means "no effect", such as a ratio of 1; None if there is none."""
        text = self.fact("neutral")
        return float(text) if text else None


@dataclass(frozen=True)
class Observation:
    """One published observation, the claims that state it, and why some do not reproduce."""

    name: str
    claims: tuple[str, ...]
    why: str


def claim_ids(text: str) -> tuple[str, ...]:
    """Return the ids in a text of ids and ranges.

    Examples
    --------
    >>> claim_ids("C001 C044-C046")
    ('C001', 'C044', 'C045', 'C046')
    """
    return tuple(
        f"C{number:03d}"
        for first, last in re.findall(r"C(\d+)(?:-C(\d+))?", text)
        for number in range(int(first), int(last or first) + 1)
    )


def read_rows(name: str) -> list[dict[str, str]]:
    """Read a table of `data/published/` by its name without suffix."""
    with (PUBLISHED / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_claims() -> list[Claim]:
    """Return all published claims in the order of their ids."""
    facts: dict[str, dict[tuple[str, str], str]] = {}
    for row in read_rows("claim_facts"):
        for claim in claim_ids(row["claims"]):
            facts.setdefault(claim, {})[row["fact"], row["source"]] = row["text"]
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
            facts=facts.get(row["id"], {}),
        )
        for row in read_rows("claims")
    ]


def documented_claims() -> list[Claim]:
    """Return all claims of the judged documents, also those that no source answers yet."""
    return [claim for claim in read_claims() if claim.source in DOCUMENTS]


def select_claims(source: str) -> list[Claim]:
    """Return the claims of one document, or of all documents that are judged.

    Raises
    ------
    ReproError
        The document is unknown; the message lists the known ones.
    """
    documents = choose("source", source, {**{one: (one,) for one in DOCUMENTS}, "all": DOCUMENTS})
    return [claim for claim in documented_claims() if claim.source in documents]


def read_sources() -> dict[str, str]:
    """Return title and venue of each document by its key."""
    return {row["key"]: f"{row['title']} ({row['venue']})" for row in read_rows("sources")}


@cache
def observations() -> tuple[Observation, ...]:
    """Return all observations in the order of `claim_facts.csv`."""
    rows = read_rows("claim_facts")
    reasons = {row["claims"]: row["text"] for row in rows if row["fact"] == "why"}
    return tuple(
        Observation(row["text"], claim_ids(row["claims"]), reasons.get(row["claims"], ""))
        for row in rows
        if row["fact"] == "observation"
    )


def observation_of(claim: str) -> Observation:
    """Return the observation that a claim states.

    Raises
    ------
    KeyError
        The claim is not judged here.
    """
    return {own: one for one in observations() for own in one.claims}[claim]
