"""A notebook's verdicts are those that its selection can give."""

import pytest
import xarray as xr

from repro.catalog.studies.selection import select
from repro.claims.answers import answers
from repro.claims.quantities import experiment_tests
from repro.experiments.static_sources import load_results

pytestmark = pytest.mark.slow

_WEAK = {claim for claim, test in experiment_tests().items() if test.experiment == "weak_scaling"}


def test_a_whole_measurement_answers_all_but_what_it_cannot(made_up_results: xr.Dataset) -> None:
    found = answers({"weak_scaling": made_up_results})
    assert set(found.rows.index) == _WEAK and found.rest == ""
    assert "testbed" in found.rows and "cluster" not in found.rows


def test_a_partial_selection_answers_nothing_in_one_line(made_up_results: xr.Dataset) -> None:
    part = made_up_results.sel(protocol=["ipoib"])
    found = answers({"weak_scaling": part})
    # Inputs are inputs, whatever was run.
    computing = {"C015", "C016", "C070", "C071", "C080"}
    assert set(found.rows.index) == {"C072", "C073"} | computing
    assert f"{len(_WEAK) - 7} claims" in found.rest
    assert "without protocol rdma, tcp" in found.rest and "\n" not in found.rest


def test_a_prediction_has_no_column_of_the_testbed() -> None:
    found = answers({"weak_scaling": load_results(select("weak_scaling", "predicted"))})
    assert "testbed" not in found.rows and "verdict" not in found.rows
    assert set(found.rows.index) <= _WEAK and len(found.rows) > 20
    assert not found.rows["note"].str.contains("testbed").any()
    one = answers({"weak_scaling": load_results(select("weak_scaling", "predicted", "ipoib"))})
    assert len(one.rows) == 0 and "without protocol" in one.rest


def test_published_values_stand_beside_the_prediction() -> None:
    found = answers({"weak_scaling": load_results(select("weak_scaling", "paper"))})
    assert found.rows.loc["C017", "published"] == "2.51 x"
    assert found.rows.loc["C017", "predicted"] != "-"
