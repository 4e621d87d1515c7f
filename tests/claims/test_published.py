"""The published values are complete, uniquely identified and attributed."""

import csv
from typing import get_args

import pytest

from repro.claims.findings import SOURCES, Verdict
from repro.claims.published import claim_ids, read_claims
from repro.paths import PUBLISHED


def _rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_claims_have_ids_statements_and_known_sources() -> None:
    claims = read_claims()
    sources = {row["key"] for row in _rows("sources.csv")}
    assert len({claim.id for claim in claims}) == len(claims) > 100
    for claim in claims:
        assert claim.statement and claim.section
        assert claim.source in sources, claim.id
        if claim.comparator in ("ordering", "trend"):
            assert claim.value is None, claim.id


def test_facts_are_about_claims_and_have_known_names() -> None:
    claims = {claim.id for claim in read_claims()}
    for row in _rows("claim_facts.csv"):
        assert set(claim_ids(row["claims"])) <= claims
        assert row["source"] in ("", *SOURCES)
        # A verdict can be a fact, too.
        names = {"observation", "why", "formula", "neutral", "assumption", *get_args(Verdict)}
        assert row["fact"] in names and row["text"]


def test_a_fact_about_one_source_is_none_about_others() -> None:
    (claim,) = (one for one in read_claims() if one.id == "C123")
    assert "NVLink" in claim.fact("not run", "testbed")
    assert claim.fact("not run", "predicted") == claim.fact("not run") == ""
    assert claim.fact("assumption", "testbed") == claim.fact("assumption") != ""


def test_set_ups_have_known_sources() -> None:
    sources = {row["key"] for row in _rows("sources.csv")}
    assert {row["source"] for row in _rows("setup.csv")} <= sources


def test_the_collectives_table_is_consistent_with_its_own_formula() -> None:
    # nccl-tests: busbw = algbw 2(n-1)/n for an all-reduce, (n-1)/n for gather and scatter.
    for row in _rows("nccl_bigred200.csv"):
        recomputed = float(row["inter_busbw_recomputed"])
        assert float(row["inter_busbw_GBps_reported"]) == pytest.approx(recomputed, rel=2e-3)
        size, n, time = (float(row[f"{k}"]) for k in ("size_bytes", "inter_n", "inter_time_us"))
        algbw = size / (time * 1e-6) / 1e9
        factors = (2 * (n - 1) / n, (n - 1) / n)
        assert any(recomputed == pytest.approx(algbw * factor, rel=2e-3) for factor in factors)
