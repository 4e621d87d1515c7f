"""The published values are complete and uniquely identified."""

import csv
from pathlib import Path

PUBLISHED = Path(__file__).parents[1] / "data" / "published"


def test_claim_ids_are_unique_and_values_are_numbers():
    with (PUBLISHED / "claims.csv").open(newline="") as file:
        claims = list(csv.DictReader(file))
    assert len({claim["id"] for claim in claims}) == len(claims) > 100
    for claim in claims:
        assert claim["statement"]
        if claim["value"]:
            float(claim["value"])
