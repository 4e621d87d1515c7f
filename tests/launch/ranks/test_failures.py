"""What is said of ranks that fail, whichever of them is heard first."""

import os
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer

import pytest
from waiting import PATIENCE_S

from repro.errors import ReproError
from repro.launch.messages import Failure
from repro.launch.ranks import processes
from repro.launch.ranks.processes import RankProcesses
from repro.launch.ranks.rank import Place
from repro.launch.request import PoolSpec

pytestmark = pytest.mark.slow


def _killed_or_complaining(place: Place, supervisor: Connection) -> None:
    """Rank 1 is killed, and its neighbours say that the connection to it was lost."""
    place.log.touch()
    if place.rank == 1:
        supervisor.recv()
        os.kill(os.getpid(), signal.SIGKILL)
    supervisor.send(Failure("connection reset by peer"))
    supervisor.recv()


@pytest.mark.parametrize("first", ["killed", "complaining"])
def test_a_killed_rank_is_named_though_its_neighbours_complain_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(processes, "PRELOADED", [])
    monkeypatch.setattr(processes, "serve", _killed_or_complaining)
    monkeypatch.setattr(processes, "_MESSAGES_S", PATIENCE_S)
    ranks = RankProcesses(PoolSpec(None, 3, None), None, tmp_path)
    user, _kept = Pipe()
    kill = Timer(0.0 if first == "killed" else 0.5, ranks.pipes[1].send, [None])
    try:
        for rank in (0, 2):
            ranks.pipes[rank].poll(None)
        kill.start()
        if first == "killed":
            ranks.processes[1].join()
        with pytest.raises(ReproError, match="rank 1 on node 0 was killed by SIGKILL"):
            ranks.collect(3, user)
    finally:
        ranks.terminate()
