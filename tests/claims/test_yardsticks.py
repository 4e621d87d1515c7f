"""Other papers' errors as yardsticks: an error that is as small reproduces them."""

import numpy as np
import pandas as pd
import pytest

from repro.claims.experiments.performance_paper import error_finding
from repro.claims.published import read_claims
from repro.claims.verdicts import judge


def test_less_is_better() -> None:
    errors_pct = pd.Series([1.0, -4.0, 2.0, -2.0])
    found = error_finding(errors_pct, published=2.0)
    # The geometric mean; the arithmetic one is 2.25.
    assert found.value == pytest.approx(2.0) and found.verdict == "reproduced"
    assert error_finding(errors_pct, published=50.0).verdict == "reproduced"
    assert error_finding(5 * errors_pct, published=2.0).verdict == "not reproduced"
    assert "4 measured iterations" in found.reason and "4.0 %" in found.reason


def test_an_interval_that_holds_the_published_error_reproduces_it() -> None:
    errors_pct = pd.Series(np.tile([1.0, 9.0], 8))
    found = error_finding(errors_pct, published=2.5)
    assert found.value == pytest.approx(3.0) and found.verdict == "reproduced"
    assert found.interval is not None and found.interval[0] < 2.5 < found.interval[1]


def test_errors_are_of_the_measured_gpus() -> None:
    claims = [claim for claim in read_claims() if claim.id in ("C162", "C163", "C164")]
    dlrm, transformer, sharding = judge(claims, {})
    assert dlrm.verdicts["predicted"] == transformer.verdicts["predicted"] == "reproduced"
    # Three sizes of four sets of tables, and two of four models, on two GPUs.
    assert "24 measured iterations" in dlrm.findings["predicted"].reason
    assert "16 measured iterations" in transformer.findings["predicted"].reason
    found = sharding.findings["predicted"]
    assert (found.value, found.verdict) == (None, "not reproduced")
    assert "several GPUs" in found.reason
    assert {one.findings["testbed"].verdict for one in (dlrm, transformer, sharding)} == {"not run"}
