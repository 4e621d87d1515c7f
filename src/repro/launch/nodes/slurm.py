"""Slurm commands that an experiment needs: submit, query and cancel jobs."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from repro.errors import NotRunHere, ReproError, one_line

_STATE = re.compile(r"\bJobState=(\w+)")
# Error of squeue about a job that ended long ago.
_FORGOTTEN = "Invalid job id"
# States in which a job ended without an error of its own.
INTERRUPTED = frozenset({"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"})


def submit(script: Path) -> str:
    """Submit a job script, and return the job's id.

    Raises
    ------
    NotRunHere
        There is no Slurm here.
    ReproError
        Slurm rejects the job; the message has its reason.
    """
    result = _run("sbatch", "--parsable", str(script))
    if result.returncode:
        reason = one_line(result.stderr).replace("sbatch: error: ", "")
        raise ReproError(f"Slurm rejected {script} ({reason}); change `slurm` in params/nodes.yaml")
    # With federations the cluster's name follows.
    return result.stdout.strip().partition(";")[0]


def queued(job: str) -> tuple[str, ...]:
    """Return the state of each element of a job that has not ended, and why it waits."""
    result = _run("squeue", "--noheader", "--array", f"--jobs={job}", "--format=%T (%r)")
    if result.returncode and _FORGOTTEN not in result.stderr:
        # The controller is busy or restarting; the job continues without it.
        return (f"Slurm does not answer: {one_line(result.stderr)}",)
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    return tuple(line.removesuffix(" (None)") for line in lines)


def end_states(job: str) -> frozenset[str]:
    """Return the states in which the elements of a job ended; empty if Slurm has forgotten it."""
    return frozenset(_STATE.findall(_run("scontrol", "--oneliner", "show", "job", job).stdout))


def cancel(job: str) -> None:
    """Cancel a job with all its elements, whether it runs or waits."""
    _run("scancel", job)


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotRunHere(
            f"there is no {command[0]} here; start this on a node that submits jobs, or set "
            "`launch: local` in params/nodes.yaml"
        ) from None


def job_script(
    folder: Path,
    *,
    name: str,
    partition: str,
    nodes: int,
    ranks_per_node: int,
    gpus_per_node: int,
    time_limit_min: int,
    jobs: int,
    options: Sequence[str],
    setup: str,
    command: Sequence[str],
) -> str:
    """Return a batch script whose job runs `command` on its first node.

    The job is an array of `jobs` elements. Slurm requeues it when it was preempted or lost a node.
    """
    asked = [
        f"--job-name={name}",
        f"--partition={partition}",
        f"--nodes={nodes}",
        f"--ntasks-per-node={ranks_per_node}",
        *([f"--gpus-per-node={gpus_per_node}"] if gpus_per_node else []),
        f"--time={time_limit_min}",
        f"--array=0-{jobs - 1}",
        "--requeue",
        "--open-mode=append",
        f"--output={folder}/job-%A_%a.log",
        *options,
    ]
    lines = [f"#SBATCH {option}" for option in asked]
    return "\n".join(["#!/bin/bash", *lines, setup, f"exec {' '.join(command)}", ""])
