"""Ranks as processes of their own on this machine, each with one thread, for a single task."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from repro.errors import ReproError
from repro.processes import fork_server

# What ranks that have answered may take to end by themselves.
_ENDING_S = 5.0
# Is given its rank, the number of ranks and a free port of the loopback, then what follows.
Task = Callable[..., Any]
# Where a measurement goes, and what measures.
Turn = tuple[list[Any], Callable[[], Any]]


def run_ranks(what: str, ranks: int, task: Task, *arguments: Any) -> list[Any]:
    """What the task returns on each rank.

    Parameters
    ----------
    what
        Is said where a rank fails.

    Raises
    ------
    ReproError
        A rank's own, or a rank ended without an answer.
    """
    # Loading them takes each rank seconds.
    context = fork_server(["torch", task.__module__])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    pipes, processes = [], []
    for rank in range(ranks):
        here, there = context.Pipe()
        given = (there, task, rank, ranks, port, *arguments)
        processes.append(context.Process(target=_rank, args=given, daemon=True))
        processes[-1].start()
        there.close()
        pipes.append(here)
    try:
        answers = _answers(pipes)
        for process in processes:
            process.join(_ENDING_S)
        return answers
    except EOFError:
        raise ReproError(
            f"{what} with {ranks} ranks: one of them ended; see its words above"
        ) from None
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _answers(pipes: Sequence[Connection]) -> list[Any]:
    """One of each rank; the first that says why it cannot answer ends it."""
    found: dict[Connection, Any] = {}
    while silent := [pipe for pipe in pipes if pipe not in found]:
        for pipe in wait(silent):
            assert isinstance(pipe, Connection)
            found[pipe] = pipe.recv()
            if isinstance(found[pipe], ReproError):
                raise found[pipe]
    return [found[pipe] for pipe in pipes]


def take_turns(turns: Sequence[Turn], repeats: int, silent: bool) -> None:
    """Measure everything so many times, each time in another order that is the same on all ranks.

    A machine's speed wanders, by half and more where others compute beside it. What is compared is
    measured in turns, and by means: all have their part of fast and slow times, and means add up.
    """
    for repeat in tqdm(range(repeats), desc="repeats", leave=False, disable=silent):
        for into, measure in Random(repeat).sample(turns, len(turns)):
            into.append(measure())


def bind_to_core(rank: int, cpus: Path = Path("/sys/devices/system/cpu")) -> None:
    """Keep this process, and what it starts, on a core that no other rank has, as long as there are
    as many; where cores have several threads, on one of them. Only Linux can."""
    if sys.platform != "linux":
        return
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    bound = list(cores.values())
    os.sched_setaffinity(0, {bound[rank % len(bound)]})


def _rank(answer: Connection, task: Task, rank: int, ranks: int, port: int, *given: Any) -> None:
    import torch

    # Of this machine's CPU, whatever else it has.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    try:
        answer.send(task(rank, ranks, port, *given))
    except ReproError as error:
        answer.send(error)
