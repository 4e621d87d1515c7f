"""An experiment as a whole: resuming, and a machine that cannot run it."""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import made_up_computing, made_up_configuration, small_run

from repro.catalog.models.trainable import trainable
from repro.catalog.studies.selection import Selection, select
from repro.catalog.systems.clusters import cluster
from repro.errors import NotRunHere, ReproError
from repro.experiments import computing as computing_times
from repro.experiments import measurement, on_testbed, this_machine
from repro.experiments.computing import measure_missing
from repro.experiments.measurement import measure
from repro.experiments.on_testbed import emulated_measurement
from repro.experiments.sensitivity import get_sensitivity
from repro.experiments.sources import get_results
from repro.launch import execution, store
from repro.launch.execution import run_on_pool
from repro.launch.request import PoolSpec, Request
from repro.launch.store import Store, key
from repro.predict.explore.experiments.configurations import compute_time
from repro.results.outcome import Outcome, OutOfMemory
from repro.results.schema import coordinates
from repro.results.store import write_dataset


@pytest.fixture(autouse=True)
def computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing times of every model: 0.02 s and 0.02 s a sequence, once disturbed."""
    models = ["gpt2-medium", "gpt2-large", "bert-large", "t5-large", "gpt-350m"]
    times = [[0.04, 0.04, 0.2], [0.1, 0.1, 0.4], [0.34, 0.34, 0.34]]
    peaks = [11e6, 14e6, 26e6]
    dataset = made_up_computing(models, times, peaks)
    monkeypatch.setattr(computing_times, "RESULTS", tmp_path)
    monkeypatch.setattr(measurement, "RESULTS", tmp_path / "results")
    write_dataset(dataset, computing_times.compute_path())


class _FakeSession:
    """Counts what it is asked to train, and stops the user after so many configurations."""

    def __init__(self, until: int = 100, most_sequences: int = 1000, most_microbatches: int = 1000):
        self.trained: list[Request] = []
        self._until = until
        self._most_sequences = most_sequences
        self._most_microbatches = most_microbatches

    def run_interleaved(
        self, requests: Sequence[Request], report: object
    ) -> list[Outcome] | OutOfMemory:
        if self._until == 0:
            raise KeyboardInterrupt
        self._until -= 1
        self.trained += requests
        if requests[0].run.micro_batch_size > self._most_sequences:
            return OutOfMemory(0, "no room")
        if max(request.run.microbatches for request in requests) > self._most_microbatches:
            return OutOfMemory(0, "no room")
        return [None for _ in requests]  # type: ignore[misc]


def _measure(
    selection: Selection,
    folder: Path,
    session: _FakeSession,
    monkeypatch: pytest.MonkeyPatch,
) -> xr.Dataset:
    _answer_with(session, monkeypatch, [])
    return measure(emulated_measurement(selection, folder, "95,5"))


def _answer_with(
    session: _FakeSession, monkeypatch: pytest.MonkeyPatch, opened: list[PoolSpec]
) -> None:
    def open_pool(spec: PoolSpec, say: object) -> nullcontext[_FakeSession]:
        opened.append(spec)
        return nullcontext(session)

    real = execution.result_of

    def made_up_result(request: Request, outcome: Outcome | OutOfMemory) -> xr.Dataset:
        if isinstance(outcome, OutOfMemory):
            return real(request, outcome)
        return made_up_configuration(request.coordinates)

    monkeypatch.setattr(execution, "open_pool", open_pool)
    monkeypatch.setattr(execution, "result_of", made_up_result)


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
    assert not any(request in first.trained for request in second.trained)
    assert dataset["iteration_time_s"].notnull().any(["iteration", "rank"]).all()


@pytest.mark.slow
def test_what_two_experiments_have_in_common_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro batches of 4 on 4 GPUs are a global batch of 16."""
    session = _FakeSession()
    _answer_with(session, monkeypatch, [])

    def trained(name: str, gpus: Sequence[int], output: str = "") -> list[int]:
        selection = select(name, models="gpt2-medium", protocol="rdma", gpus=gpus)
        before = len(session.trained)
        found = get_results(selection, output)
        assert found["gpus"].values.tolist() == sorted(gpus)
        return [request.ranks for request in session.trained[before:]]

    output = "results/weak_scaling.nc"
    assert trained("weak_scaling", [8]) == [8]
    assert trained("weak_scaling", [4, 8], output) == [4]
    assert trained("strong_scaling", [4, 8]) == [8]
    assert trained("strong_scaling", [4, 8]) == []
    # The pipeline's dataset answers without the store.
    shutil.rmtree(tmp_path / "results/store")
    assert trained("weak_scaling", [4, 8]) == []
    assert trained("weak_scaling", [8]) == [8]


def test_a_dataset_from_the_store_is_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer_with(_FakeSession(), monkeypatch, [])
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    for name in ("first", "second"):
        get_results(selection, f"{name}.nc")
    first, second = ((tmp_path / f"{name}.nc").read_bytes() for name in ("first", "second"))
    assert first == second


def test_another_corpus_or_code_is_another_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run("bert", tmp_path)
    request = Request(coordinates("bert-large", "rdma", 2), run, 2)
    before = key(request)
    assert key(replace(request, run=replace(run, iterations=2))) != before
    assert key(replace(request, rates_gbps={"fabric": 1.0})) != before
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets/bert.bin").write_bytes(b"other tokens")
    store.corpus_digest.cache_clear()
    with_corpus = key(request)
    assert with_corpus != before
    monkeypatch.setattr(store, "method_digest", lambda name: "other code")
    assert key(request) not in (before, with_corpus)


def test_another_parameter_is_another_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _FakeSession(), _FakeSession()
    for session, name in ((first, "weak_scaling"), (second, "strong_scaling")):
        selection = select(name, models="gpt2-medium", protocol="rdma", gpus=8)
        _measure(selection, tmp_path, session, monkeypatch)
    assert len(second.trained) == 1, "a configuration with another batch was found in the store"


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
    assert [len(session.trained) for session in sessions] == [6, 3, 6]


def test_computing_times_of_another_machine_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured on a slower processor, and used on this one: the wrong rates, silently."""
    here = {**this_machine.computing_machine(), "processor": "another"}
    monkeypatch.setattr(this_machine, "computing_machine", lambda: here)
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    with pytest.raises(ReproError, match=r"processor .*, not another; .*; fix: repro compute"):
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
    for request, rate in zip(session.trained, full.values(), strict=True):
        assert request.rates_gbps["fabric"] == pytest.approx(rate * explained["rate_scale"])
        # Ranks find out how slow they are beside the one that the rates are right for.
        assert request.passes_s == (pytest.approx((0.03, 0.05, 0.02)),)


def test_stages_of_a_pipeline_take_turns_as_at_full_size(tmp_path: Path) -> None:
    selection = select("model_parallelism", models="gpt2-medium", protocol="rdma", gpus=8)
    (request,) = emulated_measurement(selection, tmp_path, "95,5").requests
    stages_s = np.sum(request.passes_s, axis=1)
    assert stages_s.sum() == pytest.approx(0.08)
    # 3 of 24 layers of 1024 each; the last stage also has the logits of 50304 tokens, and their
    # softmax and loss, which are slow for their FLOPs.
    layers, logits = 3 * 12 * 1024**2, 50304 * 1024
    assert 1 < (stages_s[-1] / stages_s[1]) / ((layers + logits) / layers) < 1.4
    assert stages_s[1:-1] == pytest.approx(stages_s[1])


def test_a_step_that_ranks_divide_takes_as_long_as_it_takes(tmp_path: Path) -> None:
    selection = select("gpt350m", models="gpt-350m", gpus=8)
    assert selection.experiment.distributed_optimizer
    for request in emulated_measurement(selection, tmp_path, "95,5").requests:
        assert [len(stage) for stage in request.passes_s] == [2]


def test_optimizers_count_where_gradients_are_what_is_sent(tmp_path: Path) -> None:
    for name, expected in (("weak_scaling", 0.1), ("model_parallelism", 0.08)):
        selection = select(name, models="gpt2-medium", gpus=8)
        (explained,) = json.loads(
            emulated_measurement(selection, tmp_path, "95,5").attributes["similarity"]
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
    dataset = get_sensitivity(selection)
    assert len(opened) == 1 and dataset["mfu"].size == 2
    assert dataset["iteration_time_s"].notnull().any(["iteration", "rank"]).all()
    # The faster the real GPU, the slower links may be.
    rates = [request.rates_gbps["fabric"] for request in session.trained]
    scales = [one["time_scale"] for one in json.loads(dataset.attrs["requests"])]
    predicted = compute_time(trainable("bert-large"), cluster("pinnacles"), 4)
    ends = [end_s + predicted.optimizer_s for end_s in (predicted.low_s, predicted.high_s)]
    assert scales[0] / scales[3] == pytest.approx(ends[1] / ends[0])
    assert scales == [scales[0]] * 3 + [scales[3]] * 3
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
    requests = emulated_measurement(selection, tmp_path, "95,5").requests
    # Two neighbours share the experts, and never more than four.
    ranks = [(request.ranks, request.run.expert_parallel) for request in requests]
    assert sorted(ranks) == [(2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 4)]


def test_a_machine_whose_links_would_be_too_fast_computes_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the cores: RDMA would need more than can be shaped, and get less than its share."""
    here = emulated_measurement(select("weak_scaling"), tmp_path, "95,5")
    path = computing_times.compute_path()
    times = xr.load_dataset(path)
    faster = times.assign(pass_time_s=times.pass_time_s / 10)
    write_dataset(faster, path)
    there = emulated_measurement(select("weak_scaling"), tmp_path, "95,5")
    assert isinstance(here.target, PoolSpec) and isinstance(there.target, PoolSpec)
    fabric = {request.rates_gbps["fabric"] for request in there.requests}
    assert max(fabric) == pytest.approx(1.0)
    slowed = json.loads(there.attributes["emulated_gpu"])["slowed"]
    assert 1 < slowed < 10
    assert there.target.cores == pytest.approx(here.target.cores / slowed)
    for before, after in zip(here.requests, there.requests, strict=True):
        # Faster by what is not held back, links and computing alike.
        ratio = after.rates_gbps["fabric"] / before.rates_gbps["fabric"]
        assert ratio == pytest.approx(10 / slowed)
        assert before.time_scale / after.time_scale == pytest.approx(10 / slowed)
        assert np.sum(after.passes_s) == pytest.approx(np.sum(before.passes_s) * slowed / 10)


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
        (request.ranks, request.run.pipeline_parallel, request.run.microbatches)
        for request in session.trained
    ]
    assert found == [(2, 2, 4), (4, 4, 8), (8, 8, 16)]
    replicas = select("model_parallelism", models="bert-large", gpus=8, pipeline_parallel=2)
    _measure(replicas, tmp_path, session, monkeypatch)
    assert session.trained[-1].run.microbatches == 128 // 4 // 4


def test_a_sweep_ends_where_memory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _FakeSession(most_sequences=4)
    selection = select("data_batches", models="gpt2-medium")
    dataset = _measure(selection, tmp_path, session, monkeypatch)
    assert [request.run.micro_batch_size for request in session.trained] == [1, 2, 4, 8]
    assert len({request.memory_bytes for request in session.trained}) == 1
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
        assert [request.run.microbatches for request in session.trained] == asked
        full = dataset["out_of_memory"].squeeze().values.tolist()
        assert full == [0, 0, int(most < 32)]
        timed = dataset["iteration_time_s"].notnull().any(["iteration", "rank"]).squeeze()
        assert timed.values.tolist() == [True, True, most == 32]


def test_what_is_no_sweep_goes_on_where_one_case_had_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _FakeSession(most_sequences=4)
    chosen = select("data_batches", models="gpt2-medium")
    found = emulated_measurement(chosen, tmp_path, "95,5")
    assert isinstance(found.target, PoolSpec)
    # A layout replaces the coordinate of a sweep.
    alone = [
        replace(
            request,
            coordinates={
                "layout" if name == "global_batch_size" else name: value
                for name, value in request.coordinates.items()
            },
        )
        for request in reversed(found.requests)
    ]
    _answer_with(session, monkeypatch, [])
    run_on_pool(alone, found.target, Store(tmp_path / "alone"), "alone")
    assert [request.run.micro_batch_size for request in session.trained] == [32, 16, 8, 4, 2, 1]


def test_both_ends_of_an_interval_have_memory_of_their_own(tmp_path: Path) -> None:
    chosen = select("data_batches", models="gpt2-medium")
    first, second = emulated_measurement(chosen, tmp_path, "95,5").requests[:2]
    ends = [
        replace(request, coordinates={**request.coordinates, "mfu": mfu}).series
        for request in (first, second)
        for mfu in (0.3, 0.4)
    ]
    assert ends[:2] == ends[2:] and len(set(ends)) == 2


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
    assert [request.run.micro_batch_size for request in session.trained] == [1, 2, 4, 1, 2, 4]


def test_a_machine_that_cannot_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spec: PoolSpec, say: Callable[[str], None]) -> None:
        raise NotRunHere("no namespaces for user 1000")

    monkeypatch.setattr(execution, "open_pool", refuse)
    selection = select("weak_scaling", models="gpt2-medium", protocol="rdma")
    dataset = measure(emulated_measurement(selection, tmp_path, "95,5"))
    assert not dataset.sizes
    assert json.loads(dataset.attrs["not_run"]) == {"testbed": "no namespaces for user 1000"}
