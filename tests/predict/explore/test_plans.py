"""The best plans are those that trying every plan one by one would find."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from repro.errors import ReproError
from repro.predict.calibration.interval import half_width
from repro.predict.explore.jobs.plans import (
    FRAMEWORK_BYTES,
    SPLIT,
    PaperJob,
    best_plans,
    choose_job,
    describe,
    job_plans,
    save_plans,
    transports,
)
from repro.predict.step.quantities import MEMORY, quantities
from repro.predict.workload import RECOMPUTE, Plan, valid, workload
from repro.results.store import read_dataset

pytestmark = pytest.mark.slow

_ALL = 10**6
_JOBS = {
    "one protocol of several": ("bert-large", "pinnacles", "tcp", 4, 8),
    "two stacks, three levels of links": ("t5-large", "frontier", "fabric", 16, 8),
    "little memory": ("gpt2-large", "lassen", "fabric", 4, 8),
}


@pytest.fixture(params=_JOBS.values(), ids=list(_JOBS))
def job(request: pytest.FixtureRequest) -> PaperJob:
    return choose_job(*request.param)


def _by_hand(job: PaperJob) -> dict[tuple[int | str, ...], float]:
    """Iteration times of all plans that fit, each evaluated by itself."""
    found = {}
    sizes = [size for size in range(1, job.gpus + 1) if job.gpus % size == 0]
    node = job.cluster.topology.gpus_per_node
    stages = range(1, 2 * job.model.full.layers + 1)
    batches = range(1, job.global_batch_size + 1)
    for t, p, v, b, mode in product(sizes, sizes, stages, batches, RECOMPUTE):
        if node % t or job.gpus % (t * p):
            continue
        d = job.gpus // (t * p)
        plan = Plan(job.global_batch_size, b, d, t, p, v, mode)
        one, _ = workload(job.model.family, job.model.full, plan).flat()
        if not valid(one).all():
            continue
        predicted = quantities(one, job.machine, job.calibration.parameters)
        used = sum(predicted[part][0] for part in MEMORY) + FRAMEWORK_BYTES
        if used <= job.cluster.device.memory_bytes:
            found[t, d, p, v, b, mode] = predicted["iteration_time_s"][0]
    return found


def test_the_same_as_by_hand(job: PaperJob) -> None:
    expected = _by_hand(job)
    best = best_plans(job, _ALL)
    assert best["iteration_time_s"].to_dict() == pytest.approx(expected)
    assert best.index.names == list(SPLIT)


def test_listed_plans_can_run_and_fit(job: PaperJob) -> None:
    best = best_plans(job, _ALL)
    assert valid(job.workload(best.index)).all()
    assert (job.workload(best.index).gpus == job.gpus).all()
    assert best.index.is_unique
    assert (best.memory_bytes <= best.gpu_memory_bytes).all()
    parts = best[[*MEMORY, "framework"]].sum(axis=1)
    assert best.memory_bytes.to_numpy() == pytest.approx(parts.to_numpy())


def test_what_does_not_fit_is_left_out() -> None:
    job = choose_job(*_JOBS["little memory"])
    assert 0 < len(best_plans(job, _ALL)) < len(job_plans(job))


def test_fastest_first_and_the_count_cuts_the_rest(job: PaperJob) -> None:
    best = best_plans(job, 5)
    assert best.iteration_time_s.is_monotonic_increasing
    assert best.equals(best_plans(job, _ALL).head(5))


def test_the_interval_is_the_models(job: PaperJob) -> None:
    best = best_plans(job, 3)
    width = half_width(job.workload(best.index), job.cluster, job.calibration, job.protocol)
    assert (best.low_s < best.iteration_time_s).all()
    assert (best.high_s / best.low_s).to_numpy() == pytest.approx(np.exp(2 * width))


def test_tensor_parallel_groups_stay_inside_a_node() -> None:
    plans = job_plans(choose_job("bert-large", "cluster-b", "fabric", 16, 16))
    assert set(plans.get_level_values("tensor_parallel")) == {1, 2, 4}


def test_cost_is_gpu_time() -> None:
    best = best_plans(choose_job("bert-large", "cluster-b", "fabric", 16, 64), 1).iloc[0]
    assert best.gpu_s_per_sequence == pytest.approx(16 * best.iteration_time_s / 64)


def test_a_slower_protocol_is_slower() -> None:
    times = [
        best_plans(choose_job("gpt2-large", "pinnacles", name, 8, 32), 1).iteration_time_s.iloc[0]
        for name in transports("pinnacles")
    ]
    assert times == sorted(times)


def test_protocols_only_where_they_were_measured() -> None:
    assert transports("pinnacles") == ["rdma", "ipoib", "tcp"]
    assert transports("dgx-h100") == ["fabric"]


def test_descriptions_leave_out_what_is_plain() -> None:
    best = best_plans(choose_job("bert-large", "pinnacles", "rdma", 4, 8), _ALL)
    known = dict(zip(best.index, describe(best.index), strict=True))
    assert known[1, 4, 1, 1, 2, "none"] == "t1 d4 p1 b2"
    assert known[1, 1, 4, 6, 2, "selective"] == "t1 d1 p4x6 b2 selective"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("gpt3", "pinnacles", "rdma", 8, 32), "unknown model 'gpt3'; choose from: gpt2-medium"),
        (("t5-large", "moon", "rdma", 8, 32), "unknown cluster 'moon'; choose from: pinnacles"),
        (
            ("t5-large", "dgx-a100", "rdma", 8, 32),
            "unknown protocol on dgx-a100 'rdma'; choose from: fabric",
        ),
        (
            ("t5-large", "pinnacles", "rdma", 9, 36),
            "gpus 9: pinnacles has 8 GPUs; take a whole number from 1 to 8",
        ),
        (("t5-large", "pinnacles", "rdma", "two", 32), "gpus 'two': pinnacles has 8 GPUs"),
        (("t5-large", "pinnacles", "rdma", 8, 0), "global_batch_size 0: take a whole number"),
    ],
)
def test_a_job_that_is_none_says_what_is_allowed(
    given: tuple[str, str, str, int, int], message: str
) -> None:
    with pytest.raises(ReproError) as raised:
        choose_job(*given)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_gpus_that_cannot_be_split_say_what_to_change() -> None:
    with pytest.raises(ReproError, match=r"^gpus 7: .*; make the latter a multiple of 7$"):
        best_plans(choose_job("bert-large", "pinnacles", "rdma", 7, 32), 1)


def test_what_fits_no_memory_says_how_much_it_needs() -> None:
    job = choose_job("gpt-1.3b", "lassen", "fabric", 1, 32)
    with pytest.raises(
        ReproError, match=r"^gpus 1: GPT-1.3B takes \d+ GB .* has 17 GB; take more GPUs"
    ):
        best_plans(job, 1)


def test_a_written_dataset_says_the_same(tmp_path: Path) -> None:
    job = choose_job("bert-large", "pinnacles", "tcp", 4, 8)
    best = best_plans(job, 3)
    save_plans(job, best, str(tmp_path / "plans.nc"))
    written = read_dataset(tmp_path / "plans.nc")
    assert written.source.item() == "predicted"
    assert list(written.plan.values) == describe(best.index)
    for name in ("iteration_time_s", "low_s", "high_s"):
        assert written[name].squeeze("source").values == pytest.approx(best[name].to_numpy())
    total = written.phase_time_s.sum("phase").squeeze("source").values
    assert total == pytest.approx(best.iteration_time_s.to_numpy())
    assert list(written.data_parallel.values) == list(best.index.get_level_values("data_parallel"))
    assert "calibration" in written.provenance
    units = {str(name): variable.units for name, variable in written.data_vars.items()}
    chosen = ("phase_time_s", "memory_bytes", "fabric_gbps", "tokens_per_s_per_gpu", "mfu")
    assert [units[name] for name in chosen] == ["s", "B", "Gbit/s", "1/s", "1"]
