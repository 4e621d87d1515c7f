"""Slurm job that runs its share of the requests, in job steps of ranks with the same protocol.

Run as `python -m repro.launch.nodes.job FOLDER` on the first node of an allocation. Results are
stored at once, so a job that is requeued, or the next one, resumes.
"""

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from repro.atomic import replace_text
from repro.errors import ReproError
from repro.launch.execution import run_requests
from repro.launch.nodes.files import (
    WORK,
    Work,
    failure_path,
    missing_path,
    progress_path,
)
from repro.launch.nodes.step import in_steps
from repro.launch.request import Request

_FIRST_PORT, _PORTS = 20000, 10000
# Slurm's SlurmdTimeout is 300 s unless a cluster sets another.
_SLURM_NOTICES_S, _ANSWER_S = 600.0, 120.0


def main() -> None:
    """Run this element's share; the exit status is 0 or 1."""
    folder, element = Path(sys.argv[1]), int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    work: Work = pickle.loads((folder / WORK).read_bytes())
    # Jobs may share a node.
    port = _FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % _PORTS
    os.environ |= {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)}

    def report(requests: Sequence[Request[Any]], steps: int, _: str) -> None:
        for request in requests:
            replace_text(progress_path(folder, element), json.dumps([request.label, steps]))

    try:
        with in_steps(work.nodes, partial(_srun, work), folder) as run:
            _, missing = run_requests(work.shares[element], work.store, run, report)
    except ReproError as error:
        if not _nodes_answer(work.number):
            # Ranks notice a lost node long before Slurm does, which then restarts this job on other
            # nodes.
            time.sleep(_SLURM_NOTICES_S)
        replace_text(failure_path(folder, element), str(error))
        sys.exit(f"repro: {error}")
    replace_text(missing_path(folder, element), json.dumps(missing))


def _srun(work: Work, ranks: int, folder: Path) -> list[str]:
    """Return the command of a step with a task per rank; one that fails ends the others."""
    return [
        "srun",
        f"--nodes={work.number}",
        f"--ntasks={ranks}",
        f"--ntasks-per-node={ranks // work.number}",
        "--kill-on-bad-exit=1",
        # A rank's threads may use all cores that the job has on the node.
        "--cpu-bind=none",
        *work.python,
        "-m",
        "repro.launch.nodes.node_rank",
        str(folder),
    ]


def _nodes_answer(number: int) -> bool:
    """Return whether all nodes of the job still run commands."""
    command = ["srun", f"--nodes={number}", "--ntasks-per-node=1", "hostname"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_ANSWER_S
        )
    except subprocess.TimeoutExpired:
        return False
    # srun may report success though it lost a node.
    return len(result.stdout.split()) == number


if __name__ == "__main__":
    main()
