"""A step on real nodes: its ranks' answers on one clock, its traffic proven, its failures told.

Ranks are answers prepared beforehand, as GPUs with NCCL would leave them.
"""

import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from made_up import made_up_records, small_run
from waiting import wait_until

from repro.catalog.systems.nodes import Nodes
from repro.errors import ProtocolMissing, ReproError
from repro.launch.execution import result_of
from repro.launch.messages import Failure
from repro.launch.nodes.files import Answer, answer_path, nccl_log_path
from repro.launch.nodes.step import in_steps, started
from repro.launch.request import Request
from repro.observe.clock_offsets import ClockOffset
from repro.observe.nic import NicSeries
from repro.results.outcome import NodeAdapters, Outcome, OutOfMemory
from repro.results.schema import coordinates

pytestmark = pytest.mark.slow

_WHERE = coordinates("bert-large", "rdma", 4, source="cluster")
# The second node's clock is ahead, and gains.
_AHEAD_S, _DRIFT = 100.0, 1e-5
_ITERATIONS, _ITERATION_BYTES = 6, 40
_ROUTE = "n:1:2 [0] NCCL INFO Channel 00/0 : {0} -> {1} [send] via NET/IB/0/GDRDMA\n"
_USING = "n:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>\n"


def _own(time_s: float) -> float:
    """What the second node's clock shows at a time of rank 0's."""
    return time_s + _AHEAD_S + _DRIFT * time_s


def _answers(sent_in_iteration: int = 100) -> list[Answer]:
    """Two nodes of two ranks; every node sends so many bytes in each iteration."""
    answers = []
    for record in made_up_records(_WHERE):
        host, second = f"node{record.rank // 2}", record.rank >= 2
        clock = _own if second else float
        moments = [clock(time) for time in (0.0, 1000.0)]
        iteration = record.iteration_time_s[0]
        times = np.arange(9.9, record.start_s[-1] + iteration + 0.1, 0.02)
        done = np.clip((times - 10.0) / iteration, 0, _ITERATIONS) * sent_in_iteration
        counted = [(int(value), 7) for value in done]
        answers.append(
            Answer(
                record=replace(record, start_s=tuple(map(clock, record.start_s))),
                clock=tuple(  # type: ignore[arg-type]
                    ClockOffset(own, own - time, 1e-5)
                    for own, time in zip(moments, (0.0, 1000.0), strict=True)
                ),
                host=host,
                used=("mlx5_0:1",),
                kinds={"eth0": "ethernet"},
                adapters=NodeAdapters(
                    host,
                    ("mlx5_0:1", "eth0"),
                    NicSeries([clock(time) for time in times], counted, counted),
                    {},
                )
                if record.rank % 2 == 0
                else None,
                accelerator={"device": "a GPU", "backend": "NCCL 2.27.3"},
            )
        )
    return answers


def _request() -> Request:
    return Request(_WHERE, small_run("bert", Path("corpus")), 4)


def _run(
    folder: Path,
    answers: list[Answer] | dict[int, object],
    nccl_log: str = _USING + _ROUTE.format(1, 2),
) -> Outcome | OutOfMemory:
    prepared = folder / "prepared"
    prepared.mkdir()
    found = dict(enumerate(answers)) if isinstance(answers, list) else answers
    for rank, answer in found.items():
        answer_path(prepared, 0, rank).write_bytes(pickle.dumps(answer))
    nccl_log_path(prepared, 1).write_text(nccl_log)

    def start(ranks: int, where: Path) -> list[str]:
        """Whole, as ranks write them: an answer that is there is read at once."""
        shutil.copytree(prepared, where, dirs_exist_ok=True)
        return ["true"]

    with started(start, 4, folder / "step") as ranks:
        return ranks.run(_request(), (), print)


def _dataset(folder: Path, answers: list[Answer]) -> xr.Dataset:
    outcome = _run(folder, answers)
    assert isinstance(outcome, Outcome)
    return result_of(_request(), outcome)


def test_a_killed_client_leaves_no_ranks(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom repro.launch.nodes.step import started\n"
        "command = ['sh', '-c', 'echo $$ > \"$0\"; exec sleep 600', sys.argv[1] + '/pid']\n"
        "with started(lambda *_: command, 1, Path(sys.argv[1]) / 'step'):\n    time.sleep(600)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    pid = tmp_path / "pid"
    wait_until(lambda: pid.exists() and pid.read_text() != "")
    launcher = Path(f"/proc/{pid.read_text().strip()}")
    assert launcher.exists()
    client.kill()
    client.wait()
    wait_until(lambda: not launcher.exists())


def test_all_times_are_on_the_first_ranks_clock(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, _answers()).squeeze()
    starts = dataset["iteration_start_s"].values
    assert np.ptp(starts, axis=1).max() < 1e-9
    sent = dataset["tx_iteration_full_scale_gbps"] * dataset["iteration_time_s"].isel(rank=0) / 8e-9
    np.testing.assert_allclose(sent.values, 100, rtol=0.05)


def test_every_adapter_is_in_the_dataset(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, _answers())
    assert dataset["adapter"].values.tolist() == ["mlx5_0:1", "eth0"]
    assert dataset.sizes["node"] == 2
    sent = dataset["adapter_sent_bytes"].squeeze()
    np.testing.assert_allclose(sent.sel(adapter="mlx5_0:1"), 100, atol=2)
    assert (sent.sel(adapter="eth0") == 0).all()
    assert (dataset["min_inter_node_bytes"] == _ITERATION_BYTES).all()
    ran_on = json.loads(dataset.attrs["ran_on"])
    assert ran_on["routes"] == {"NET/IB/GDRDMA": 1} and ran_on["bytes_proven"]
    assert ran_on["hosts"] == ["node0", "node1"]


def test_traffic_on_another_network_is_a_failure(tmp_path: Path) -> None:
    socket = "n:1:2 [0] NCCL INFO Channel 00/0 : 1 -> 2 [send] via NET/Socket/0\n"
    with pytest.raises(ReproError, match="RDMA requires IB, but NCCL used NET/Socket for 1 routes"):
        _run(tmp_path, _answers(), socket)


def test_counters_that_saw_too_little_are_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"node0 had to send 0.0 MB .* mlx5_0:1 0.0 MB"):
        _run(tmp_path, _answers(sent_in_iteration=30))


def test_without_counters_the_log_alone_is_the_proof(tmp_path: Path) -> None:
    answers = [replace(answer, used=("mlx5_9:1",)) for answer in _answers()]
    outcome = _run(tmp_path, answers)
    assert isinstance(outcome, Outcome)
    assert outcome.ran_on["bytes_proven"] is False and "routes" in outcome.ran_on
    # What nobody counted is no rate of 0.
    assert np.isnan(outcome.nics.counters("received")).all()


def test_without_counters_and_without_a_log_nothing_is_proven(tmp_path: Path) -> None:
    answers = [replace(answer, used=("mlx5_9:1",)) for answer in _answers()]
    with pytest.raises(ReproError, match="no counters of its adapters can be read on node0, node1"):
        _run(tmp_path, answers, "")


def test_memory_goes_before_what_other_ranks_say_of_it(tmp_path: Path) -> None:
    found = {0: Failure("connection closed by peer"), 2: OutOfMemory(2, "CUDA out of memory")}
    assert _run(tmp_path, found) == OutOfMemory(2, "CUDA out of memory")


def test_a_protocol_that_a_node_lacks_is_missing(tmp_path: Path) -> None:
    found = {0: Failure("reset"), 1: Failure("node0: protocol RDMA needs a port", unavailable=True)}
    with pytest.raises(ProtocolMissing, match="node0: protocol RDMA needs"):
        _run(tmp_path, found)


def test_a_rank_without_an_answer_is_named_with_the_launchers_end(tmp_path: Path) -> None:
    answers = dict(enumerate(_answers()))
    del answers[3]
    with pytest.raises(ReproError, match=r"rank 3 ended without an answer and .* exit code 0"):
        _run(tmp_path, answers)  # type: ignore[arg-type]


# Ranks that leave prepared answers to every step; larger batches than 2 do not fit their memory.
_RANK = """
import os, pickle, sys, time
from pathlib import Path
from repro.launch.nodes.files import answer_path, step_path
from repro.results.outcome import OutOfMemory
folder, answers = Path(sys.argv[1]), pickle.loads(Path(sys.argv[2]).read_bytes())
for number in range(9):
    while not step_path(folder, number).exists():
        time.sleep(0.01)
    step = pickle.loads(step_path(folder, number).read_bytes())
    if step is None:
        break
    full = step.request.run.micro_batch_size > 2
    for rank, answer in enumerate(answers):
        told = OutOfMemory(rank, f"step {number} of {os.getpid()}") if full else answer
        answer_path(folder, number, rank).write_bytes(pickle.dumps(told))
    if full:
        break
"""


def test_ranks_stay_for_the_next_case_until_one_has_failed(tmp_path: Path) -> None:
    answers = tmp_path / "answers.pkl"
    answers.write_bytes(pickle.dumps(_answers()))
    started_in = []

    def start(ranks: int, folder: Path) -> list[str]:
        started_in.append(folder)
        nccl_log_path(folder, 1).write_text(_USING + _ROUTE.format(1, 2))
        return [sys.executable, "-c", _RANK, str(folder), str(answers)]

    nodes = Nodes(launch="local", warmup=1, iterations=1)
    found = []
    with in_steps(nodes, start, tmp_path) as run:
        for size in (1, 2, 4, 1):
            request = _request()
            changed = replace(request.run, micro_batch_size=size)
            found.append(run([replace(request, run=changed)], lambda *_: None))
    assert len(started_in) == 2
    assert [isinstance(one, OutOfMemory) for one in found] == [False, False, True, False]
    assert "step 2 of" in found[2].message
    assert not answer_path(started_in[0], 0, 0).exists()
