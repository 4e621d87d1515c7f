"""Jobs of an experiment, watched to their end: what follows an interruption, and what is an error.

Slurm's commands are played; `test_cluster_on_slurm.py` has the real ones.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import xarray as xr
from made_up import made_up_configuration, small_run

from repro.catalog.systems.nodes import Nodes, Slurm
from repro.errors import ReproError
from repro.launch.execution import progress
from repro.launch.nodes import partition
from repro.launch.nodes.files import failure_path, missing_path, shares
from repro.launch.nodes.partition import run_on_partition
from repro.launch.nodes.slurm import job_script, queued
from repro.launch.request import Request
from repro.launch.store import Store
from repro.results.schema import coordinates

_SLURM = Slurm(partition="gpu", nodes=4, time_limit_min=30, options=("--exclusive",))
_NODES = Nodes(launch="slurm", gpus_per_node=2, warmup=1, iterations=4, slurm=_SLURM)


def _request(protocol: str, gpus: int = 2) -> Request:
    where = coordinates("bert-large", protocol, gpus)
    return Request(where, small_run("bert", Path("corpus"), iterations=4), gpus)


def _result(request: Request) -> xr.Dataset:
    return made_up_configuration(request.coordinates)


@dataclass
class _PlayedSlurm:
    """Each job does what the next part of the play says, then ends in its state.

    A part is the protocols whose cases it finishes, the state, and what it leaves in its folder.
    """

    store: Store
    requests: Sequence[Request]
    parts: list[tuple[tuple[str, ...], str, dict[str, str]]]
    submitted: list[Path] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    state: str = ""

    def submit(self, script: Path) -> str:
        self.submitted.append(script)
        protocols, self.state, files = self.parts.pop(0)
        for request in self.requests:
            if request.protocol in protocols:
                self.store.put(request, _result(request))
        for name, text in files.items():
            (script.parent / name).write_text(text)
        return str(len(self.submitted))

    def queued(self, job: str) -> tuple[str, ...]:
        return ("RUNNING",) if self.state == "RUNNING" else ()

    def end_states(self, job: str) -> frozenset[str]:
        return frozenset({self.state} if self.state else ())


def _play(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    requests: Sequence[Request],
    parts: list[tuple[tuple[str, ...], str, dict[str, str]]],
) -> tuple[_PlayedSlurm, list[str], dict[str, str]]:
    store = Store(tmp_path / "store")
    slurm = _PlayedSlurm(store, requests, parts)
    for name in ("submit", "queued", "end_states"):
        monkeypatch.setattr(partition, name, getattr(slurm, name))
    monkeypatch.setattr(partition, "cancel", slurm.cancelled.append)
    monkeypatch.setattr(partition, "_POLL_S", 0.0)
    monkeypatch.setattr(partition, "_FILES_S", 0.0)
    with progress(requests, "played") as bar:
        datasets, missing = run_on_partition(
            {1: list(requests)}, _NODES, store, tmp_path / "out.logs", bar
        )
    return slurm, [dataset["protocol"].item() for dataset in datasets], missing


def test_a_job_that_was_interrupted_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [_request(name) for name in ("rdma", "ipoib", "tcp")]
    parts = [(("rdma",), "TIMEOUT", {}), (("ipoib",), "PREEMPTED", {}), (("tcp",), "COMPLETED", {})]
    slurm, done, missing = _play(tmp_path, monkeypatch, requests, parts)
    assert done == ["rdma", "ipoib", "tcp"] and missing == {}
    assert len(slurm.submitted) == 3 and slurm.cancelled == []


def test_a_job_that_finishes_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [_request("rdma"), _request("tcp")]
    parts = [(("rdma",), "TIMEOUT", {}), ((), "TIMEOUT", {})]
    with pytest.raises(
        ReproError,
        match=r"job 2 on 1 nodes ended as TIMEOUT with 1 of 1 configurations open; "
        r"raise slurm.time_limit_min \(30\)",
    ):
        _play(tmp_path, monkeypatch, requests, parts)


@pytest.mark.parametrize("state", ["CANCELLED", "FAILED", ""])
def test_a_job_that_ended_in_another_way_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    how = state or "a state that Slurm has forgotten"
    with pytest.raises(ReproError, match=f"ended as {how} with 1 of 2 .* run again to resume"):
        _play(tmp_path, monkeypatch, [_request("rdma"), _request("tcp")], [(("rdma",), state, {})])


def test_what_a_job_says_of_its_failure_is_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = {failure_path(Path(), 0).name: "rank 3 failed: KeyError: 'x'; logs are in /x"}
    with pytest.raises(ReproError, match="rank 3 failed: KeyError"):
        _play(tmp_path, monkeypatch, [_request("tcp")], [((), "RUNNING", failure)])


def test_a_missing_protocol_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {missing_path(Path(), 0).name: json.dumps({"rdma": "no InfiniBand"})}
    parts = [(("tcp",), "COMPLETED", missing)]
    _, done, found = _play(tmp_path, monkeypatch, [_request("rdma"), _request("tcp")], parts)
    assert done == ["tcp"] and found == {"rdma": "no InfiniBand"}


def test_finished_cases_need_no_job_and_a_killed_clients_job_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = _request("tcp")
    Store(tmp_path / "store").put(request, _result(request))
    left = tmp_path / "out.logs/1nodes"
    left.mkdir(parents=True)
    (left / "job").write_text("77")
    slurm, done, _ = _play(tmp_path, monkeypatch, [request], [])
    assert (done, slurm.submitted, slurm.cancelled) == (["tcp"], [], ["77"])


def test_a_controller_that_does_not_answer_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answers = {
        "echo 'PENDING (Resources)'; echo 'RUNNING (None)'": ("PENDING (Resources)", "RUNNING"),
        "echo 'error: Unable to contact slurm controller' >&2; exit 1": (
            "Slurm does not answer: error: Unable to contact slurm controller",
        ),
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1": (),
    }
    for script, expected in answers.items():
        squeue.write_text(f"#!/bin/sh\n{script}\n")
        squeue.chmod(0o755)
        assert queued("7") == expected


def test_shares_keep_a_series_together_and_in_order() -> None:
    run = small_run("bert", Path("corpus"))
    requests = [
        Request({"protocol": name, "micro_batch_size": size}, run, size)
        for size in (2, 4)
        for name in ("rdma", "ipoib", "tcp")
    ]
    dealt = shares(requests, 2)
    assert [[(request.protocol, request.ranks) for request in share] for share in dealt] == [
        [("rdma", 2), ("tcp", 2), ("rdma", 4), ("tcp", 4)],
        [("ipoib", 2), ("ipoib", 4)],
    ]
    assert len(shares(requests, 8)) == 3


def test_the_script_asks_for_what_the_file_says(tmp_path: Path) -> None:
    script = partial(
        job_script,
        tmp_path,
        name="repro-weak-4nodes",
        partition="gpu",
        nodes=4,
        ranks_per_node=2,
        time_limit_min=30,
        jobs=3,
        options=("--account=x",),
        setup="module load cuda",
        command=["python", "-m", "repro.launch.nodes.job"],
    )
    lines = script(gpus_per_node=2).splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {
        "#SBATCH --partition=gpu",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --time=30",
        "#SBATCH --array=0-2",
        "#SBATCH --requeue",
        "#SBATCH --account=x",
    } <= set(lines)
    assert lines[-2:] == ["module load cuda", "exec python -m repro.launch.nodes.job"]
    without = [line for line in lines if "gpus" not in line]
    assert script(gpus_per_node=0).splitlines() == without


def test_a_container_wraps_the_ranks_alone() -> None:
    inside = partition._python(_SLURM.model_copy(update={"container": "repro.sif"}))
    assert inside[:3] == ("apptainer", "exec", "--nv") and inside[-2:] == ("repro.sif", "python3")
    assert len(partition._python(_SLURM)) == 1
