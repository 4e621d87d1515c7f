"""The reference run: small, readable without samples, and compared by intervals."""

from pathlib import Path

import pytest
import xarray as xr

from repro.catalog.studies.selection import select
from repro.claims.answers import answers
from repro.claims.published import documented_claims
from repro.claims.reference import (
    agreement,
    compare,
    judge_reference,
    keep_run,
    reference_run,
)
from repro.claims.verdicts import judge
from repro.errors import ReproError
from repro.experiments.static_sources import load_results
from repro.observe.environment import provenance
from repro.results import reference
from repro.results.metrics import communication_fraction, iteration_time_s
from repro.results.store import not_run

# Each draws or judges a whole run.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(made_up_results: xr.Dataset) -> dict[str, xr.Dataset]:
    described = made_up_results.assign_attrs(
        title="A made-up run", profile="default", provenance=provenance({})
    )
    return {"strong_scaling": described, "weak_scaling": described}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, results: dict[str, xr.Dataset]) -> Path:
    kept = tmp_path_factory.mktemp("reference")
    keep_run(results, judge(documented_claims(), results), kept)
    return kept


def test_what_is_kept_is_small_and_says_what_it_is(
    folder: Path, results: dict[str, xr.Dataset]
) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 200_000
    kept = reference.read_reference("weak_scaling", folder)
    assert kept.sizes["iteration"] == 1 and "sample" not in kept.dims
    assert "profile default" in reference_run(folder) and "cores" in reference_run(folder)
    assert kept.attrs["title"] == "A made-up run, reference run"
    for name in kept.data_vars.keys() - {"cells"}:
        assert kept[name].dims == results["weak_scaling"][name].dims
    # Quantities of the means are those of the samples.
    for quantity in (iteration_time_s, communication_fraction):
        there, here = xr.align(quantity(kept), quantity(results["weak_scaling"]), join="exact")
        assert float(abs(there / here - 1).max()) < 1e-5


def test_verdicts_are_those_of_the_run(folder: Path, results: dict[str, xr.Dataset]) -> None:
    measured = {j.id: j for j in judge(documented_claims(), results)}
    for kept in judge_reference(documented_claims(), folder):
        for source in ("predicted", "testbed"):
            found, wanted = kept.findings[source], measured[kept.id].findings[source]
            assert (found.verdict, found.reason) == (wanted.verdict, wanted.reason)
            assert found.value == (
                None if wanted.value is None else pytest.approx(wanted.value, rel=1e-4)
            )


def test_the_predictions_kept_in_git_are_the_models() -> None:
    """After a change of the model, `python docs/renew.py` renews them."""
    kept = {j.id: j for j in judge_reference(documented_claims())}
    for now in judge(documented_claims(), {}):
        found, again = kept[now.id].findings["predicted"], now.findings["predicted"]
        assert (found.verdict, found.reason) == (again.verdict, again.reason)
        ends = (again.value, *(again.interval or ()))
        assert (found.value, *(found.interval or ())) == tuple(
            None if end is None else pytest.approx(end, rel=1e-5) for end in ends
        )


def test_a_run_agrees_with_itself_and_a_slower_one_does_not(
    folder: Path, results: dict[str, xr.Dataset]
) -> None:
    same = compare(results, folder)
    # Four models, three protocols, three numbers of GPUs; three quantities.
    assert len(same) == 2 * 3 * 36
    assert (abs(same["ratio"] - 1) < 1e-4).all()
    slower = dict(results)
    slower["weak_scaling"] = results["weak_scaling"].assign(
        iteration_time_s=2 * results["weak_scaling"]["iteration_time_s"]
    )
    counts = agreement(compare(slower, folder))
    assert counts.loc[("weak_scaling", "iteration time, s"), "agree"] == 0
    assert counts.loc[("weak_scaling", "iteration time, s"), "median ratio"] == pytest.approx(2)
    assert counts.loc[("weak_scaling", "utilisation, Gbit/s"), "agree"] == 36


def test_a_notebook_shows_it_as_what_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (reference.read_reference, judge_reference):
        monkeypatch.setattr(function, "__defaults__", (folder,))
    kept = load_results(select("weak_scaling", "reference"))
    found = answers({"weak_scaling": kept})
    assert found.rows.loc["C017", "testbed"] != "-"
    part = load_results(select("weak_scaling", "reference", "ipoib"))
    assert part["protocol"].values.tolist() == ["ipoib"]
    assert "without protocol rdma, tcp" in answers({"weak_scaling": part}).rest


def test_without_one_a_line_says_so(tmp_path: Path, results: dict[str, xr.Dataset]) -> None:
    assert "repro reference" in reference_run(tmp_path)
    for ask in (lambda: judge_reference([], tmp_path), lambda: compare(results, tmp_path)):
        with pytest.raises(ReproError, match="no reference run is kept"):
            ask()
    with pytest.raises(ReproError, match="gpt350m: nothing was measured to keep"):
        keep_run({"gpt350m": not_run({"testbed": "no root"})}, [], tmp_path)
    assert not list(tmp_path.iterdir())
