"""Robust fits, weights and held-out groups, where results are known by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from repro.predict.calibration.fit import (
    Loss,
    group_weights,
    held_out,
    most_probable,
    write_fit,
)
from repro.predict.parameters import Prior, Residuals
from repro.predict.workload import Array

_SIZE = np.geomspace(1.0, 1e4, 30)


@pytest.mark.parametrize(("loss", "pull"), [("soft_l1", 0.05), ("cauchy", 0.001)])
def test_rows_that_are_far_off_have_little_weight(loss: Loss, pull: float) -> None:
    measured = 2.0 + 0.1 * _SIZE
    measured[::10] *= 100
    found = most_probable(
        lambda values: np.log((values["latency"] + values["slope"] * _SIZE) / measured),
        {"latency": Prior(1.0, 1.0), "slope": Prior(0.2, 1.0), "unseen": Prior(3.0, 0.5)},
        loss=loss,
    )
    assert found.values["slope"] == pytest.approx(0.1, rel=pull)
    # Rows do not depend on it, so that its prior remains.
    assert found.values["unseen"] == pytest.approx(3.0)
    assert found.covariance[2, 2] == pytest.approx(0.5**2)


def test_groups_weigh_as_the_square_roots_of_their_sizes() -> None:
    weights = group_weights(pd.Series(["few"] * 4 + ["many"] * 16))
    assert weights[4:].sum() / weights[:4].sum() == pytest.approx(2)
    assert group_weights(pd.Series(["one"] * 3)).tolist() == [1, 1, 1]


def test_copies_of_one_configuration_weigh_as_one() -> None:
    weights = group_weights(pd.Series(["a", "a", "a", "b", "b"]), np.array([2.0, 2, 1, 1, 1]))
    assert weights[:2].sum() == pytest.approx(weights[2]) == pytest.approx(weights[3])


def test_each_group_is_predicted_by_the_rows_of_all_others() -> None:
    values = pd.Series([1.0, 2.0, 4.0, 8.0], index=[7, 3, 5, 1])

    def above_sum(seen: Array, held: Array) -> Array:
        errors: Array = values[held].to_numpy() - values[seen].sum()
        return errors

    groups = pd.Series(["a", "a", "b", None], index=values.index)
    found = held_out(groups, above_sum)
    assert found[[7, 3, 5]].tolist() == [1 - 12, 2 - 12, 4 - 11]
    assert found.isna().tolist() == [False, False, False, True]
    assert held_out(groups[:2], above_sum).isna().all()


def test_numbers_are_written_with_four_digits(tmp_path: Path) -> None:
    value = {"fits": [Residuals(rows=12345, mape_pct=1.23456, half_width=1.23456e-6)]}
    write_fit(value, "repro.module", tmp_path / "new" / "fits.yaml")
    comment, *lines = (tmp_path / "new" / "fits.yaml").read_text().splitlines()
    assert comment.endswith("described in repro.module.")
    assert lines == ["fits:", "- {rows: 12345, mape_pct: 1.235, half_width: 1.235e-06}"]
