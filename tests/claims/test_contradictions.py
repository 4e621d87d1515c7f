"""The documents' own numbers against each other."""

import pytest

from repro.claims.contradictions import contradictions


def test_the_arithmetic_is_that_of_the_documents() -> None:
    found = {entry.quantity: entry for entry in contradictions()}
    tcp = found["AllReduce TCP / RDMA, weak"]
    assert (tcp.stated, tcp.implied) == (8.7, pytest.approx(0.9112 / 0.0888 / (0.505 / 0.495)))
    assert found["iteration TCP / RDMA, weak"].implied == pytest.approx(0.495 / 0.0888)
    report = found["GPT-350M, bandwidth between nodes"]
    assert (report.stated, report.implied) == (11.29, pytest.approx(9.879, abs=0.001))


def test_every_claim_named_exists() -> None:
    for entry in contradictions():
        assert len(entry.claims) >= 2
        assert entry.arithmetic
