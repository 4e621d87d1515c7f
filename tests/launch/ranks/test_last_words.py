"""What is said of ranks that fail, whichever of them is heard first."""

import os
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from repro.errors import ReproError
from repro.launch.messages import Failure, Site
from repro.launch.ranks import processes
from repro.launch.ranks.processes import RankProcesses
from repro.launch.ranks.rank import Place


def _killed_or_complaining(place: Place, supervisor: Connection) -> None:
    """Rank 1 is killed, and its neighbour says that the connection to it was lost."""
    place.log.touch()
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    supervisor.send(Failure("connection reset by peer"))
    supervisor.recv()


def test_a_killed_rank_is_named_though_its_neighbour_complains_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PRELOADED", [])
    monkeypatch.setattr(processes, "serve", _killed_or_complaining)
    ranks = RankProcesses(Site(None, 2, None), None, tmp_path)
    user, _kept = Pipe()
    try:
        ranks.processes[1].join()
        ranks.pipes[0].poll(None)
        with pytest.raises(ReproError, match="rank 1 on node 0 was killed by SIGKILL"):
            ranks.collect(2, user)
    finally:
        ranks.bury()
