"""Runs on a Slurm partition: one job per number of nodes, watched until all requests are done."""

import json
import pickle
import shlex
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from repro.atomic import replacing
from repro.catalog.systems.nodes import Nodes, Slurm
from repro.errors import ReproError
from repro.launch.execution import Bar
from repro.launch.nodes.files import (
    WORK,
    Work,
    failure_path,
    missing_path,
    progress_path,
    shares,
)
from repro.launch.nodes.slurm import INTERRUPTED, cancel, end_states, job_script, queued, submit
from repro.launch.request import Request
from repro.launch.store import Store
from repro.paths import ROOT

_POLL_S = 1.0
# Slurm is queried more rarely, because its controller serves all users.
_POLLS_PER_QUERY = 5
# Files of other nodes may appear after the end of the job that wrote them.
_FILES_S = 10.0
_JOB = "job"


@dataclass
class _Group:
    """Requests for one number of nodes, and the job that runs them."""

    number: int
    requests: list[Request[Any]]
    folder: Path
    elements: int = 0
    job: str = ""
    left: int = 0
    missing: dict[str, str] = field(default_factory=dict)

    def open_requests(self, store: Store) -> list[Request[Any]]:
        return [
            request
            for request in self.requests
            if request.protocol not in self.missing and not store.has(request)
        ]


def run_on_partition(
    requests: dict[int, list[Request[Any]]], nodes: Nodes, store: Store, folder: Path, bar: Bar
) -> tuple[list[xr.Dataset], dict[str, str]]:
    """Submit a job for each number of nodes, and wait until every request is done.

    After a job that reached its time limit, was preempted or lost a node, another one is submitted,
    as long as each finishes something. When this ends, no job is left.

    Parameters
    ----------
    requests
        By the number of nodes that they need.
    folder
        A folder that all nodes see; logs stay there.

    Returns
    -------
    datasets, not_run
        One dataset per request that was run, and the missing protocols with the reason.

    Raises
    ------
    NotRunHere
        There is no Slurm here.
    ReproError
        A job was rejected, failed, was cancelled, or finished nothing in its time.
    """
    assert nodes.slurm is not None
    _cancel_forgotten(folder)
    shutil.rmtree(folder, ignore_errors=True)
    groups = [
        _Group(number, found, folder / f"{number}nodes")
        for number, found in sorted(requests.items())
    ]
    with ExitStack() as stack:
        for group in groups:
            stack.callback(_cancel, group)
            if group.open_requests(store):
                _submit(group, nodes, store)
        polls = 0
        while waiting := [group for group in groups if _unfinished(group, store, bar)]:
            if polls % _POLLS_PER_QUERY == 0:
                for group in waiting:
                    _look_after(group, nodes, store, bar)
            polls += 1
            time.sleep(_POLL_S)
        for group in groups:
            _let_end(group)
    finished = [store.find(request) for group in groups for request in group.requests]
    missing = {name: why for group in groups for name, why in group.missing.items()}
    return [dataset for dataset in finished if dataset is not None], missing


def _submit(group: _Group, nodes: Nodes, store: Store) -> None:
    """Submit a job for the open requests."""
    slurm = nodes.slurm
    assert slurm is not None and nodes.gpus_per_node is not None
    # Steps and answers are pickled, so a user who could write here could run code as this one.
    group.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    left = group.open_requests(store)
    # Finished requests of a series tell where memory ran out.
    series = {request.series for request in left}
    dealt = shares([one for one in group.requests if one.series in series], slurm.jobs)
    group.elements, group.left = len(dealt), len(left)
    work = Work(dealt, group.number, nodes, store, _python(slurm))
    for element in range(group.elements):
        for stale in (progress_path, missing_path, failure_path):
            stale(group.folder, element).unlink(missing_ok=True)
    with replacing(group.folder / WORK) as path:
        path.write_bytes(pickle.dumps(work))
    script = group.folder / "job.sh"
    command = [sys.executable, "-m", "repro.launch.nodes.job", str(group.folder)]
    text = job_script(
        group.folder,
        name=f"repro-{group.folder.parent.stem}-{group.number}nodes",
        partition=slurm.partition,
        nodes=group.number,
        ranks_per_node=max(request.ranks for request in left) // group.number,
        gpus_per_node=nodes.gpus_per_node if nodes.shapes == "full" else 0,
        time_limit_min=slurm.time_limit_min,
        jobs=group.elements,
        options=slurm.options,
        setup=slurm.setup,
        command=[shlex.quote(word) for word in command],
    )
    script.write_text(text, encoding="utf-8")
    group.job = submit(script)
    (group.folder / _JOB).write_text(group.job, encoding="utf-8")


def _python(slurm: Slurm) -> tuple[str, ...]:
    """Return the command that runs Python in a rank: this environment's, or the container's."""
    if slurm.container is None:
        return (sys.executable,)
    # The project has the same path inside, so ranks run these sources and not the image's; --nv
    # binds the driver's libraries.
    bound = ("--bind", str(ROOT), "--pwd", str(ROOT), "--env", f"PYTHONPATH={ROOT / 'src'}")
    return ("apptainer", "exec", "--nv", *bound, slurm.container, "python3")


def _unfinished(group: _Group, store: Store, bar: Bar) -> bool:
    """Show the progress of a group's job, and return whether a request is still open.

    Raises
    ------
    ReproError
        The job failed.
    """
    for element in range(group.elements):
        failure = failure_path(group.folder, element)
        if failure.exists():
            raise ReproError(failure.read_text(encoding="utf-8"))
        missing = missing_path(group.folder, element)
        if missing.exists():
            group.missing |= json.loads(missing.read_text(encoding="utf-8"))
    left = group.open_requests(store)
    for request in group.requests:
        if request not in left:
            bar.report([request], request.steps)
    by_label = {request.label: request for request in left}
    for element in range(group.elements):
        progress = progress_path(group.folder, element)
        label, steps = (
            json.loads(progress.read_text(encoding="utf-8")) if progress.exists() else ("", 0)
        )
        if label in by_label:
            bar.report([by_label[label]], steps)
    return bool(left)


def _look_after(group: _Group, nodes: Nodes, store: Store, bar: Bar) -> None:
    """Query Slurm about a group's job; submit another one after an interruption.

    Raises
    ------
    ReproError
        The job ended in another state, or without a finished request.
    """
    if states := queued(group.job):
        bar.say(f"{group.number} nodes: {', '.join(dict.fromkeys(states))}")
        return
    deadline = time.monotonic() + _FILES_S
    while _unfinished(group, store, bar):
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    else:
        return
    left = len(group.open_requests(store))
    ended = end_states(group.job)
    how = ", ".join(sorted(ended)) or "a state that Slurm has forgotten"
    if ended and ended <= INTERRUPTED | {"COMPLETED"} and left < group.left:
        _submit(group, nodes, store)
        return
    slurm = nodes.slurm
    assert slurm is not None
    fix = (
        f"raise slurm.time_limit_min ({slurm.time_limit_min}) in params/nodes.yaml"
        if "TIMEOUT" in ended
        else "run again to resume"
    )
    raise ReproError(
        f"job {group.job} on {group.number} nodes ended as {how} with {left} of {group.left} "
        f"configurations open; {fix}; its log is in {group.folder}"
    )


def _let_end(group: _Group) -> None:
    """Wait briefly for a job that has done its work to end by itself."""
    deadline = time.monotonic() + _FILES_S
    while group.job and queued(group.job) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _cancel(group: _Group) -> None:
    if group.job and queued(group.job):
        cancel(group.job)
    (group.folder / _JOB).unlink(missing_ok=True)


def _cancel_forgotten(folder: Path) -> None:
    """Cancel the jobs of an earlier client that was killed."""
    for path in folder.glob(f"*/{_JOB}"):
        cancel(path.read_text(encoding="utf-8"))
