"""An experiment as a whole: resuming, and a machine that cannot run it."""

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import made_up_computing, made_up_configuration

from repro.catalog.models.trainable import trainable
from repro.catalog.studies.selection import Selection, select
from repro.catalog.systems.clusters import cluster
from repro.errors import NotRunHere, ReproError
from repro.experiments import ahead, on_testbed, this_machine
from repro.experiments import computing as computing_times
from repro.experiments import obtain as obtaining
from repro.experiments.computing import measure_missing
from repro.experiments.obtain import finish, obtain_sensitivity
from repro.experiments.on_testbed import resolve_on_testbed
from repro.launch import carry_out as carrying
from repro.launch import cases
from repro.launch.cases import in_dimension
from repro.launch.following import follows, wait_until_measured
from repro.launch.journal import Journal
from repro.launch.messages import Order, Site
from repro.predict.explore.experiments.configurations import compute_time
from repro.results.outcome import Outcome, OutOfMemory
from repro.results.store import write_dataset


@pytest.fixture(autouse=True)
def computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing times of every model: 0.02 s and 0.02 s a sequence, once disturbed."""
    models = ["gpt2-medium", "gpt2-large", "bert-large", "t5-large"]
    times = [[0.04, 0.04, 0.2], [0.1, 0.1, 0.4], [0.34, 0.34, 0.34]]
    peaks = [11e6, 14e6, 26e6]
    dataset = made_up_computing(models, times, peaks)
    monkeypatch.setattr(computing_times, "RESULTS", tmp_path)
    write_dataset(dataset, computing_times.compute_path())


class _FakeSession:
    """Counts what it is asked to train, and stops the user after so many configurations."""

    def __init__(self, until: int = 100, most_sequences: int = 1000, most_microbatches: int = 1000):
        self.trained: list[Order] = []
        self._until = until
        self._most_sequences = most_sequences
        self._most_microbatches = most_microbatches

    def take_turns(self, orders: Sequence[Order], report: object) -> list[Outcome] | OutOfMemory:
        if self._until == 0:
            raise KeyboardInterrupt
        self._until -= 1
        self.trained += orders
        if orders[0].run.micro_batch_size > self._most_sequences:
            return OutOfMemory(0, "no room")
        if max(order.run.microbatches for order in orders) > self._most_microbatches:
            return OutOfMemory(0, "no room")
        return [None for _ in orders]  # type: ignore[misc]


def _measure(
    selection: Selection,
    folder: Path,
    session: _FakeSession,
    monkeypatch: pytest.MonkeyPatch,
) -> xr.Dataset:
    _answer_with(session, monkeypatch, [])
    return _carried_out(selection, folder)


def _answer_with(
    session: _FakeSession, monkeypatch: pytest.MonkeyPatch, opened: list[Site]
) -> None:
    def open_site(site: Site, say: object) -> nullcontext[_FakeSession]:
        opened.append(site)
        return nullcontext(session)

    monkeypatch.setattr(carrying, "open_site", open_site)
    monkeypatch.setattr(
        cases,
        "configuration_dataset",
        lambda source, cell, outcome, *scales: made_up_configuration(cell),
    )


def _carried_out(selection: Selection, folder: Path) -> xr.Dataset:
    resolved = resolve_on_testbed(selection, folder, "95,5")
    journal = Journal(folder / "out.nc")
    return resolved.describe(
        *carrying.carry_out(resolved.cases, resolved.where, journal, folder, resolved.title)
    )


@pytest.mark.slow
def test_an_interrupted_experiment_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select("weak_scaling", models="gpt2-medium", protocol="all")
    first, second = _FakeSession(until=2), _FakeSession()
    with pytest.raises(KeyboardInterrupt):
        _measure(selection, tmp_path, first, monkeypatch)
    dataset = _measure(selection, tmp_path, second, monkeypatch)
    # Three protocols take turns on each of 2, 4 and 8 GPUs.
    assert (len(first.trained), len(second.trained)) == (6, 3)
    assert not any(order in first.trained for order in second.trained)
    assert dataset["iteration_time_s"].notnull().any(["iteration", "rank"]).all()


@pytest.mark.slow
def test_what_two_experiments_have_in_common_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro batches of 4 on 4 GPUs are a global batch of 16; a first look is a part of weak
    scaling. What is measured outside of the pipeline is not taken for its results."""
    monkeypatch.setattr(obtaining, "RESULTS", tmp_path)
    session = _FakeSession()
    _answer_with(session, monkeypatch, [])

    def trained(name: str, output: str, gpus: Sequence[int], **more: str) -> list[int]:
        selection = select(name, models="gpt2-medium", protocol="rdma", gpus=gpus)
        before = len(session.trained)
        obtaining.obtain(selection, output, **more)
        return [order.ranks for order in session.trained[before:]]

    folder = tmp_path.name
    assert trained("weak_scaling", f"{folder}/mine.nc", [4, 8]) == [4, 8]
    assert trained("weak_scaling", f"{folder}/look.nc", [8], begins="weak_scaling") == [8]
    assert trained("weak_scaling", f"{folder}/weak_scaling.nc", [4, 8]) == [4]
    assert trained("strong_scaling", f"{folder}/mine.nc", [4, 8]) == [4, 8]
    assert trained("strong_scaling", f"{folder}/strong_scaling.nc", [4, 8]) == [8]
    assert trained("strong_scaling", f"{folder}/strong_scaling.nc", [4, 8]) == [4, 8]


@pytest.mark.slow
def test_what_is_measured_ahead_is_found_by_who_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Micro batches of 4 on 4 GPUs are a part of both experiments, and measured once."""
    monkeypatch.setattr(obtaining, "RESULTS", tmp_path)
    names = ("weak_scaling", "strong_scaling")
    chosen = {
        name: select(name, models="gpt2-medium", protocol="rdma", gpus=(4, 8)) for name in names
    }
    monkeypatch.setattr(
        ahead, "resolve_stage", lambda name, profile: [obtaining.resolve(chosen[name])]
    )
    session = _FakeSession()
    _answer_with(session, monkeypatch, [])
    ahead.measure_ahead("default", names)
    assert [order.ranks for order in session.trained] == [4, 8, 8]
    assert capsys.readouterr().out == "Measuring weak_scaling\nMeasuring strong_scaling\n"
    monkeypatch.setenv(*_following_what_ended())
    for name in names:
        found = obtaining.obtain(chosen[name], f"{tmp_path.name}/{name}.nc")
        assert found.gpus.values.tolist() == [4, 8]
        assert not any(Journal(tmp_path / f"{name}.nc").has(one) for one in json.loads(found.asked))
    assert len(session.trained) == 3


def _following_what_ended() -> tuple[str, str]:
    ended = subprocess.Popen(["true"])
    ended.wait()
    ((name, pid),) = follows(ended.pid).items()
    return name, pid


def test_who_follows_waits_and_measures_nothing_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    cases_asked = resolve_on_testbed(selection, tmp_path, "95,5").cases
    journal = Journal(tmp_path / "out.nc")
    kept = xr.Dataset({"loss": ("iteration", [1.0])})
    with subprocess.Popen(["sleep", "600"]) as measuring:
        for name, pid in follows(measuring.pid).items():
            monkeypatch.setenv(name, pid)
        waiting = threading.Thread(target=wait_until_measured, args=(cases_asked, journal))
        waiting.start()
        for case in cases_asked:
            waiting.join(0.1)
            assert waiting.is_alive()
            journal.keep(case.inputs, kept)
        waiting.join()
        measuring.kill()
    monkeypatch.setenv(*_following_what_ended())
    session = _FakeSession()
    _answer_with(session, monkeypatch, [])
    monkeypatch.setattr(obtaining, "RESULTS", tmp_path)
    with pytest.raises(ReproError, match=r"2 GPUs and 2 more were not measured ahead"):
        obtaining.obtain(selection, f"{tmp_path.name}/other.nc")
    assert not session.trained


def test_another_parameter_is_another_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _FakeSession(), _FakeSession()
    for session, name in ((first, "weak_scaling"), (second, "strong_scaling")):
        selection = select(name, models="gpt2-medium", protocol="rdma", gpus=8)
        _measure(selection, tmp_path, session, monkeypatch)
    assert len(second.trained) == 1, "a configuration with another batch was found in the journal"


@pytest.mark.slow
def test_another_machine_is_another_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select("weak_scaling", models="gpt2-medium", protocol="all")
    sessions = [_FakeSession(until=2), _FakeSession(until=2), _FakeSession(until=2)]
    for session, cores in zip(sessions, (0.2, 0.2, 0.1), strict=True):
        monkeypatch.setattr(on_testbed, "emulated_gpu", lambda _, cores=cores: {"cores": cores})
        try:
            _measure(selection, tmp_path, session, monkeypatch)
        except KeyboardInterrupt:
            continue
        tmp_path.joinpath("out.nc").unlink(missing_ok=True)
    assert [len(session.trained) for session in sessions] == [6, 3, 6]


def test_computing_times_of_another_machine_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured on a slower processor, and used on this one: the wrong rates, silently."""
    here = {**this_machine.computing_machine(), "processor": "another"}
    monkeypatch.setattr(this_machine, "computing_machine", lambda: here)
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    with pytest.raises(ReproError, match=r"processor .*, not another; .*measure them .*`repro com"):
        _measure(selection, tmp_path, _FakeSession(), monkeypatch)


def test_rates_are_derived_from_the_median_computing_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _FakeSession()
    selection = select("weak_scaling", models="gpt2-medium", gpus=8)
    dataset = _measure(selection, tmp_path, session, monkeypatch)
    explained = json.loads(dataset.attrs["similarity"])["gpt2-medium"]
    assert explained["compute_testbed_s"] == pytest.approx(0.1)
    full = {"rdma": 81.9, "ipoib": 20.0, "tcp": 9.41}
    for order, rate in zip(session.trained, full.values(), strict=True):
        assert order.rates_gbps["fabric"] == pytest.approx(rate * explained["rate_scale"])
        # Ranks find out how slow they are beside the one that the rates are right for.
        assert order.passes_s == pytest.approx((0.03, 0.05, 0.02))


def test_optimizers_count_where_gradients_are_what_is_sent(tmp_path: Path) -> None:
    for name, expected in (("weak_scaling", 0.1), ("model_parallelism", 0.08)):
        selection = select(name, models="gpt2-medium", gpus=8)
        (explained,) = json.loads(
            resolve_on_testbed(selection, tmp_path, "95,5").attributes["similarity"]
        ).values()
        assert explained["compute_testbed_s"] == pytest.approx(expected)
        entry, kind = cluster("pinnacles"), trainable("gpt2-medium")
        full = compute_time(kind, entry, 4, pipeline=name != "weak_scaling")
        step_s = full.optimizer_s if name == "weak_scaling" else 0.0
        assert 0 < full.optimizer_s < full.value_s
        assert explained["compute_full_s"] == pytest.approx(full.value_s + step_s)


@pytest.mark.slow
def test_both_ends_of_the_computing_time_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, opened = _FakeSession(), []
    _answer_with(session, monkeypatch, opened)
    selection = select("weak_scaling", models="bert-large", gpus=8)
    dataset = obtain_sensitivity(selection, str(tmp_path / "out.nc"))
    assert len(opened) == 1 and dataset["mfu"].size == 2
    assert dataset["iteration_time_s"].notnull().any(["iteration", "rank"]).all()
    # The faster the real GPU, the slower links may be.
    rates = [order.rates_gbps["fabric"] for order in session.trained]
    fulls = [one["similarity"]["compute_full_s"] for one in json.loads(dataset.attrs["asked"])]
    predicted = compute_time(trainable("bert-large"), cluster("pinnacles"), 4)
    ends = [end_s + predicted.optimizer_s for end_s in (predicted.low_s, predicted.high_s)]
    assert fulls == pytest.approx([ends[0]] * 3 + [ends[1]] * 3)
    assert len(rates) == 6 and json.loads(dataset.attrs["provenance"])
    for low, high in zip(rates[:3], rates[3:], strict=True):
        assert low / high == pytest.approx(ends[0] / ends[1])


def test_open_models_are_measured_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = xr.load_dataset(computing_times.compute_path())
    asked = []

    def measure(trained: Sequence[tuple[bool, str]], *_: object) -> xr.Dataset:
        asked.append(trained)
        return known.isel(model=[0]).assign_coords(model=[trained[0][1]])

    monkeypatch.setattr(computing_times, "measure_compute", measure)
    selection = select("weak_scaling", models="gpt2-medium,olmoe-1b-7b", protocol="rdma")
    for _ in range(2):
        measure_missing(selection.models, tmp_path, "95,5")
    assert asked == [[(False, "olmoe-1b-7b")]]
    orders = [case.order for case in resolve_on_testbed(selection, tmp_path, "95,5").cases]
    # Two neighbours share the experts, and never more than four.
    ranks = [(order.ranks, order.run.expert_parallel) for order in orders]
    assert sorted(ranks) == [(2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 4)]


def test_a_machine_whose_links_would_be_too_fast_computes_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the cores: RDMA would need more than can be shaped, and get less than its share."""
    here = resolve_on_testbed(select("weak_scaling"), tmp_path, "95,5")
    path = computing_times.compute_path()
    times = xr.load_dataset(path)
    faster = times.assign(pass_time_s=times.pass_time_s / 10)
    write_dataset(faster, path)
    there = resolve_on_testbed(select("weak_scaling"), tmp_path, "95,5")
    assert isinstance(here.where, Site) and isinstance(there.where, Site)
    fabric = {one.order.rates_gbps["fabric"] for one in there.cases}
    assert max(fabric) == pytest.approx(1.0)
    slowed = json.loads(there.attributes["emulated_gpu"])["slowed"]
    assert 1 < slowed < 10
    assert there.where.cores == pytest.approx(here.where.cores / slowed)
    for before, after in zip(here.cases, there.cases, strict=True):
        # Faster by what is not held back, links and computing alike.
        ratio = after.order.rates_gbps["fabric"] / before.order.rates_gbps["fabric"]
        assert ratio == pytest.approx(10 / slowed)
        times_s = [
            case.inputs["similarity"]["compute_testbed_s"]  # type: ignore[index]
            for case in (before, after)
        ]
        assert times_s[0] / times_s[1] == pytest.approx(10 / slowed)
        assert sum(after.order.passes_s) == pytest.approx(sum(before.order.passes_s) * slowed / 10)


def test_computing_lies_on_lines_between_and_beyond_the_measured_sizes() -> None:
    found = computing_times.read_computing("pinnacles", "bert-large", pipeline=True)
    expected = {1: 0.04, 2: 0.06, 4: 0.1, 8: 0.18, 16: 0.34, 32: 0.66}
    for micro_batch, seconds in expected.items():
        assert found.seconds(micro_batch, step=True) == pytest.approx(seconds)
        assert found.seconds(micro_batch, step=False) == pytest.approx(0.8 * seconds)
    assert (found.fixed_bytes, found.sequence_bytes) == (10e6, 1e6)


def test_computing_takes_longer_with_a_smaller_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was measured as one GPU of eight; one of cluster B is one of sixteen."""
    monkeypatch.setattr(computing_times, "cores_per_rank", lambda ranks: 1.6 / ranks)
    known, slower = (
        computing_times.read_computing(cluster, "gpt2-large", pipeline=False)
        for cluster in ("pinnacles", "cluster-b")
    )
    assert np.divide(slower.passes_s(4), known.passes_s(4)) == pytest.approx(2.0)
    assert slower.memory_bytes == known.memory_bytes


def test_a_model_without_computing_times_is_named() -> None:
    with pytest.raises(ReproError, match=r"no data-parallel model 'gpt5'.*repro compute"):
        computing_times.read_computing("pinnacles", "gpt5", pipeline=False)


def test_pipelines_cut_the_global_batch_into_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _FakeSession()
    _measure(
        select("model_parallelism", models="gpt2-large", protocol="rdma"),
        tmp_path,
        session,
        monkeypatch,
    )
    found = [
        (order.ranks, order.run.pipeline_parallel, order.run.microbatches)
        for order in session.trained
    ]
    assert found == [(2, 2, 4), (4, 4, 8), (8, 8, 16)]
    replicas = select("model_parallelism", models="bert-large", gpus=8, pipeline_parallel=2)
    _measure(replicas, tmp_path, session, monkeypatch)
    assert session.trained[-1].run.microbatches == 128 // 4 // 4


def test_a_sweep_ends_where_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _FakeSession(most_sequences=4)
    selection = select("data_batches", models="gpt2-medium")
    dataset = _measure(selection, tmp_path, session, monkeypatch)
    assert [order.run.micro_batch_size for order in session.trained] == [1, 2, 4, 8]
    assert len({order.memory_bytes for order in session.trained}) == 1
    full = dataset["out_of_memory"].squeeze(drop=True)
    assert full.sel(global_batch_size=[8, 16, 32]).values.tolist() == [0, 0, 0]
    assert full.sel(global_batch_size=[64, 128, 256]).values.tolist() == [1, 1, 1]
    times = dataset["iteration_time_s"].squeeze()
    assert times.sel(global_batch_size=64).isnull().all()
    assert times.sel(global_batch_size=32).notnull().all()


def test_batches_of_the_same_micro_batches_take_turns_while_they_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select("pipeline_batches", models="bert-large", gpus=8)
    for most, asked in ((32, [4, 16, 32]), (16, [4, 16, 32, 4, 16, 32])):
        session = _FakeSession(most_microbatches=most)
        dataset = _measure(selection, tmp_path / str(most), session, monkeypatch)
        assert [order.run.microbatches for order in session.trained] == asked
        full = dataset["out_of_memory"].squeeze().values.tolist()
        assert full == [0, 0, int(most < 32)]
        timed = dataset["iteration_time_s"].notnull().any(["iteration", "rank"]).squeeze()
        assert timed.values.tolist() == [True, True, most == 32]


def test_what_is_no_sweep_goes_on_where_one_case_had_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _FakeSession(most_sequences=4)
    resolved = resolve_on_testbed(select("data_batches", models="gpt2-medium"), tmp_path, "95,5")
    alone = [replace(case, series=None) for case in reversed(resolved.cases)]
    _answer_with(session, monkeypatch, [])
    carrying.carry_out(alone, resolved.where, Journal(tmp_path / "alone.nc"), tmp_path, "alone")
    assert [order.run.micro_batch_size for order in session.trained] == [32, 16, 8, 4, 2, 1]


def test_both_ends_of_an_interval_have_memory_of_their_own(tmp_path: Path) -> None:
    cases = resolve_on_testbed(select("data_batches", models="gpt2-medium"), tmp_path, "95,5").cases
    ends = {one.series for mfu in (0.3, 0.4) for one in (in_dimension(cases[0], "mfu", mfu, ""),)}
    assert len(ends) == 2


def test_computing_times_are_shown_by_micro_batch() -> None:
    table = computing_times.computing_table()
    assert list(table.columns) == [1, 4, 16]
    assert table.loc[("data", "bert-large")].tolist() == pytest.approx([0.04, 0.1, 0.34])


def test_models_of_an_unknown_profile_are_not_measured() -> None:
    with pytest.raises(ReproError, match="unknown profile 'thorogh'; choose from: default"):
        computing_times.listed_models("thorogh")


@pytest.mark.slow
def test_another_model_has_its_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _FakeSession(most_sequences=2)
    selection = select("data_batches", models="gpt2-medium,bert-large")
    _measure(selection, tmp_path, session, monkeypatch)
    assert [order.run.micro_batch_size for order in session.trained] == [1, 2, 4, 1, 2, 4]


def test_a_machine_that_cannot_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(site: Site, say: Callable[[str], None]) -> None:
        raise NotRunHere("no namespaces for user 1000")

    monkeypatch.setattr(carrying, "open_site", refuse)
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    dataset = _carried_out(selection, tmp_path)
    assert not dataset.sizes
    assert json.loads(dataset.attrs["not_run"]) == {"testbed": "no namespaces for user 1000"}
    # What was finished elsewhere is kept.
    path = tmp_path / "out.nc"
    journal = Journal(path)
    journal.keep({"gpus": 2}, xr.Dataset({"loss": ("iteration", [1.0])}))
    finish(dataset, path, journal)
    assert Journal(path).has({"gpus": 2})
