"""An experiment as a whole: resuming, and a machine that cannot run it."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import xarray as xr
from made_up import made_up_configuration

from repro.catalog.selection import Selection, select
from repro.errors import NotRunHere
from repro.launch import scaling
from repro.launch.journal import Journal
from repro.launch.messages import Order, Outcome, Site
from repro.results.store import write_dataset


@pytest.fixture
def compute(tmp_path: Path) -> Path:
    models = ["gpt2-medium", "gpt2-large", "bert-large", "t5-large"]
    dataset = xr.Dataset(
        {"iteration_time_s": (("model", "iteration"), [[0.1, 0.1, 0.4]] * 4)},
        coords={"model": models},
    )
    write_dataset(dataset, tmp_path / "compute.nc")
    return tmp_path / "compute.nc"


class _FakeSession:
    """Counts what it is asked to train, and stops the user after a while."""

    def __init__(self, until: int):
        self.trained: list[Order] = []
        self._until = until

    def train(self, order: Order, report: object) -> Outcome:
        if len(self.trained) == self._until:
            raise KeyboardInterrupt
        self.trained.append(order)
        return None  # type: ignore[return-value]


def _measure(
    selection: Selection,
    compute: Path,
    session: _FakeSession,
    monkeypatch: pytest.MonkeyPatch,
    cores: float | None = 0.2,
) -> xr.Dataset:
    monkeypatch.setattr(scaling, "open_site", lambda site: nullcontext(session))
    monkeypatch.setattr(
        scaling,
        "configuration_dataset",
        lambda source, protocol, gpus, similarity, outcome: made_up_configuration(
            similarity.model, protocol, gpus
        ),
    )
    monkeypatch.setattr(scaling, "emulated_cores", lambda ranks: cores)
    journal = Journal(compute.parent / "out.nc")
    return scaling.measure_scaling(selection, compute, compute.parent, "95,5", journal)


def test_an_interrupted_experiment_repeats_nothing(
    compute: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select("weak_scaling", models="gpt2-medium", protocol="all")
    first, second = _FakeSession(until=4), _FakeSession(until=100)
    with pytest.raises(KeyboardInterrupt):
        _measure(selection, compute, first, monkeypatch)
    dataset = _measure(selection, compute, second, monkeypatch)
    assert (len(first.trained), len(second.trained)) == (4, 5)
    assert not any(order in first.trained for order in second.trained)
    assert dataset["iteration_time_s"].notnull().any(["iteration", "rank"]).all()


def test_another_parameter_is_another_configuration(
    compute: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _FakeSession(until=100), _FakeSession(until=100)
    for session, name in ((first, "weak_scaling"), (second, "strong_scaling")):
        selection = select(name, models="gpt2-medium", protocol="rdma", gpus=8)
        _measure(selection, compute, session, monkeypatch)
    assert len(second.trained) == 1, "a configuration with another batch was found in the journal"


def test_rates_are_derived_from_the_median_computing_time(
    compute: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _FakeSession(until=100)
    selection = select("weak_scaling", models="gpt2-medium", gpus=8)
    dataset = _measure(selection, compute, session, monkeypatch)
    explained = json.loads(dataset.attrs["similarity"])["gpt2-medium"]
    assert explained["compute_testbed_s"] == 0.1
    full = {"rdma": 81.9, "ipoib": 20.0, "tcp": 9.41}
    for order, rate in zip(session.trained, full.values(), strict=True):
        assert order.rates_gbps["fabric"] == pytest.approx(rate * explained["rate_scale"])


def test_without_quotas_no_more_ranks_than_cores(
    compute: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _FakeSession(until=100)
    monkeypatch.setattr(scaling, "usable_cores", lambda: 2)
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    dataset = _measure(selection, compute, session, monkeypatch, cores=None)
    assert [order.ranks for order in session.trained] == [2]
    assert set(json.loads(dataset.attrs["not_run"])) == {"4 GPUs", "8 GPUs"}
    assert dataset.attrs["quota_cores"] == "none"


def test_a_machine_that_cannot_says_why(compute: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(site: Site) -> None:
        raise NotRunHere("no namespaces for user 1000")

    monkeypatch.setattr(scaling, "open_site", refuse)
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    journal = Journal(compute.parent / "out.nc")
    dataset = scaling.measure_scaling(selection, compute, compute.parent, "95,5", journal)
    assert not dataset.sizes
    assert json.loads(dataset.attrs["not_run"]) == {"testbed": "no namespaces for user 1000"}
