"""Run cases on a Slurm partition: one job for each number of nodes, watched until all is done."""

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
from repro.launch.cases import Case
from repro.launch.journal import Journal
from repro.launch.nodes.files import (
    WORK,
    Work,
    failure_path,
    missing_path,
    progress_path,
    shares,
)
from repro.launch.nodes.slurm import INTERRUPTED, cancel, end_states, job_script, queued, submit
from repro.launch.progress import Bar
from repro.paths import ROOT

_POLL_S = 1.0
# Slurm is asked more rarely: its controller serves everybody.
_POLLS_PER_QUERY = 5
# Files of other nodes may show up later than the end of the job that wrote them.
_FILES_S = 10.0
_JOB = "job"


@dataclass
class _Group:
    """The cases of one number of nodes, and the job that runs them."""

    number: int
    cases: list[Case[Any]]
    folder: Path
    elements: int = 0
    job: str = ""
    left: int = 0
    missing: dict[str, str] = field(default_factory=dict)

    def open_cases(self, journal: Journal) -> list[Case[Any]]:
        return [
            case
            for case in self.cases
            if case.protocol not in self.missing and not journal.has(case.inputs)
        ]


def run_on_partition(
    cases: dict[int, list[Case[Any]]], nodes: Nodes, journal: Journal, folder: Path, bar: Bar[Any]
) -> tuple[list[xr.Dataset], dict[str, str]]:
    """Submit a job for each number of nodes, and wait until every case is done.

    A job that reached its time limit, was preempted or lost a node is followed by another one as
    long as each finishes something. When this ends, however it ends, no job is left.

    Parameters
    ----------
    cases
        By the number of nodes that they need.
    folder
        Seen by all nodes; logs stay there.

    Returns
    -------
    datasets, not_run
        One dataset for each case that was run, and the protocols that are missing with the reason.

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
        _Group(number, found, folder / f"{number}nodes") for number, found in sorted(cases.items())
    ]
    with ExitStack() as stack:
        for group in groups:
            stack.callback(_cancel, group)
            if group.open_cases(journal):
                _submit(group, nodes, journal)
        polls = 0
        while waiting := [group for group in groups if _unfinished(group, journal, bar)]:
            if polls % _POLLS_PER_QUERY == 0:
                for group in waiting:
                    _look_after(group, nodes, journal, bar)
            polls += 1
            time.sleep(_POLL_S)
        for group in groups:
            _let_end(group)
    finished = [journal.find(case.inputs) for group in groups for case in group.cases]
    missing = {name: why for group in groups for name, why in group.missing.items()}
    return [dataset for dataset in finished if dataset is not None], missing


def _submit(group: _Group, nodes: Nodes, journal: Journal) -> None:
    """Submit a job for what is still open."""
    slurm = nodes.slurm
    assert slurm is not None and nodes.gpus_per_node is not None
    group.folder.mkdir(parents=True, exist_ok=True)
    left = group.open_cases(journal)
    # Finished cases of a series say where memory ended.
    series = {case.series for case in left}
    dealt = shares([case for case in group.cases if case.series in series], slurm.jobs)
    group.elements, group.left = len(dealt), len(left)
    work = Work(dealt, group.number, nodes, journal, _python(slurm))
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
        ranks_per_node=max(case.order.ranks for case in left) // group.number,
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
    """What runs Python in a rank: this environment's, or the container's."""
    if slurm.container is None:
        return (sys.executable,)
    # The project's files have the same path inside, and its sources are those here, whatever the
    # image was built from; --nv brings the driver's libraries along.
    bound = ("--bind", str(ROOT), "--pwd", str(ROOT), "--env", f"PYTHONPATH={ROOT / 'src'}")
    return ("apptainer", "exec", "--nv", *bound, slurm.container, "python3")


def _unfinished(group: _Group, journal: Journal, bar: Bar[Any]) -> bool:
    """Read what a group's job has written, show it, and say whether something is still open.

    Raises
    ------
    ReproError
        The job gave up.
    """
    for element in range(group.elements):
        failure = failure_path(group.folder, element)
        if failure.exists():
            raise ReproError(failure.read_text(encoding="utf-8"))
        missing = missing_path(group.folder, element)
        if missing.exists():
            group.missing |= json.loads(missing.read_text(encoding="utf-8"))
    left = group.open_cases(journal)
    for case in group.cases:
        if case not in left:
            bar.report([case], case.steps)
    by_label = {case.label: case for case in left}
    for element in range(group.elements):
        progress = progress_path(group.folder, element)
        label, steps = (
            json.loads(progress.read_text(encoding="utf-8")) if progress.exists() else ("", 0)
        )
        if label in by_label:
            bar.report([by_label[label]], steps)
    return bool(left)


def _look_after(group: _Group, nodes: Nodes, journal: Journal, bar: Bar[Any]) -> None:
    """Ask Slurm for a group's job; one that was interrupted is followed by another.

    Raises
    ------
    ReproError
        It ended in another way, or without having finished a case.
    """
    if states := queued(group.job):
        bar.say(f"{group.number} nodes: {', '.join(dict.fromkeys(states))}")
        return
    deadline = time.monotonic() + _FILES_S
    while _unfinished(group, journal, bar):
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    else:
        return
    left = len(group.open_cases(journal))
    ended = end_states(group.job)
    how = ", ".join(sorted(ended)) or "a state that Slurm has forgotten"
    if ended and ended <= INTERRUPTED | {"COMPLETED"} and left < group.left:
        _submit(group, nodes, journal)
        return
    slurm = nodes.slurm
    assert slurm is not None
    fix = (
        f"raise slurm.time_limit_min ({slurm.time_limit_min}) in params/nodes.yaml"
        if "TIMEOUT" in ended
        else "run again to go on"
    )
    raise ReproError(
        f"job {group.job} on {group.number} nodes ended as {how} with {left} of {group.left} "
        f"configurations open; {fix}; its log is in {group.folder}"
    )


def _let_end(group: _Group) -> None:
    """Give a job that has done its work the moment it takes to end by itself."""
    deadline = time.monotonic() + _FILES_S
    while group.job and queued(group.job) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _cancel(group: _Group) -> None:
    if group.job and queued(group.job):
        cancel(group.job)
    (group.folder / _JOB).unlink(missing_ok=True)


def _cancel_forgotten(folder: Path) -> None:
    """Cancel the jobs of a client that was killed: nobody waits for them any more."""
    for path in folder.glob(f"*/{_JOB}"):
        cancel(path.read_text(encoding="utf-8"))
