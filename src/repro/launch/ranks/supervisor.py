"""The process that owns a set of ranks: it builds their testbed, starts, feeds and buries them.

Run as `python -m repro.launch.ranks.supervisor FD`, where FD is a pipe to the user's process. It is
a process of its own because the user's (a notebook's kernel, say) has threads and must keep its
namespaces, and so that everything ends when the pipe closes, however the user's process ended.
"""

import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from repro.background import is_background, run_in_background
from repro.collectives.records import SweepRecord
from repro.errors import NotRunHere, ReproError
from repro.launch.messages import (
    Failure,
    Join,
    MeasurePasses,
    Order,
    Ready,
    Site,
    Waiting,
    groups_of,
)
from repro.launch.ranks.processes import RankOutOfMemory, RankProcesses, UserGone
from repro.observe.interleaving import ActiveClock, active_clocks
from repro.observe.nic import sample_counters
from repro.results.outcome import Outcome
from repro.testbed.links import (
    UPLINK,
    Network,
    build_network,
    read_uplink_bytes,
    set_fabric_latency,
    set_rates,
)
from repro.testbed.namespaces import Namespace
from repro.testbed.ownership import owned_folder
from repro.testbed.speed import Passes, SpeedCheck, verify_speed
from repro.testbed.verify import LinkCheck, until_verified, verify_links
from repro.train.records import RankRecord, TrainingRun, retimed

_FIRST_PORT = 29500
# One rank and all of them take turns in the check of their speed, as a machine's speed drifts. Of
# turns that were disturbed, so many are enough to forget them.
_LEAST_TURNS, _MOST_TURNS = 3, 12


def supervise(user: Connection) -> None:
    """Serve one site until the user closes the pipe."""
    site: Site = user.recv()
    with ExitStack() as stack:
        scratch = stack.enter_context(owned_folder())
        network = None
        if site.topology is not None:
            network = stack.enter_context(build_network(site.topology))
        os.environ.update(_environment(network is not None))

        def start(known: SpeedCheck | None) -> tuple[RankProcesses, SpeedCheck | None, float]:
            began = time.monotonic()
            started = RankProcesses(site, network, scratch)
            stack.callback(started.bury)
            # Ranks that are still starting would disturb the next check.
            _measure(site.ranks, started, user)
            speed = known or _verify_speed(site, started, user)
            return started, speed, time.monotonic() - began

        ranks, speed, starting_s = start(None)
        user.send(Ready())
        lost = False
        # So many ranks, the first ones, have a run behind them.
        warm = 0
        port, previous = _FIRST_PORT, None
        verified: list[LinkCheck] = []
        while True:
            orders: tuple[Order[Any], ...] = user.recv()
            first = orders[0]
            if lost:
                ranks, speed, starting_s = start(speed)
                lost, previous, warm = False, None, 0
            # Ranks that form other groups meet at another port.
            stages, family, *split = groups_of(first.run)
            layout = (first.ranks, stages, family if stages > 1 else None, *split)
            if layout != previous:
                port, previous = _free_port(port, network), layout
            carry_out = partial(_carry_out, ranks, network, verified, scratch, port, user)
            try:
                if first.ranks > warm and first.memory_bytes and isinstance(first.run, TrainingRun):
                    smallest = replace(
                        first, run=_smallest(first.run), memory_bytes=(), passes_s=()
                    )
                    carry_out((smallest,))
                found = carry_out(orders)
                warm = max(warm, first.ranks)
                found[0].spent_s["starting ranks"] = starting_s
                starting_s = 0.0
                user.send([replace(outcome, speed=speed) for outcome in found])
            except RankOutOfMemory as error:
                ranks.bury()
                lost = True
                user.send(error.found)


def _smallest(run: TrainingRun) -> TrainingRun:
    """The smallest run like this one, to be done without limits.

    A process's first run loads what later ones find, many times what a small model takes.
    """
    return replace(
        run,
        micro_batch_size=1,
        microbatches=1,
        warmup=1,
        iterations=1,
        most_iterations=None,
        save_every=0,
        validate_every=0,
    )


def _carry_out(
    ranks: RankProcesses,
    network: Network | None,
    verified: list[LinkCheck],
    scratch: Path,
    port: int,
    user: Connection,
    orders: Sequence[Order[Any]],
) -> list[Outcome]:
    """Have ranks carry out orders of the same work in turns; one outcome for each order."""
    order = orders[0]
    count = order.ranks
    nodes: tuple[Namespace, ...] = ()
    checks: list[tuple[LinkCheck, ...]] = [() for _ in orders]
    latencies_s = [0.0 for _ in orders]
    slowed = [1.0 for _ in orders]
    begun: list[tuple[int, float]] = []

    def set_links(turn: int, slower: float = 1.0) -> None:
        if network is not None:
            asked = orders[turn]
            set_rates(network, {name: one / slower for name, one in asked.rates_gbps.items()})
            latencies_s[turn] = set_fabric_latency(network, asked.fabric_latency_s * slower)
        slowed[turn] = slower
        begun.append((turn, time.monotonic()))

    started = time.monotonic()
    if network is not None:
        nodes = network.nodes[: network.topology.node_of(count - 1) + 1]
        # Those of the first turn last, so that they are in force.
        for turn in reversed(range(len(orders))):
            set_links(turn)
            rates = orders[turn].rates_gbps
            checks[turn] = verify_links(network, rates, count, verified, partial(_say, user))
    checking_s = time.monotonic() - started
    address = network.addresses[0] if network else "127.0.0.1"
    with sample_counters(lambda: [read_uplink_bytes(node) for node in nodes]) as nics:
        begun[:] = [(0, time.monotonic())]
        allowances = order.memory_bytes or (None,) * count
        for pipe, allowance in zip(ranks.pipes[:count], allowances, strict=True):
            pipe.send(
                Join(
                    count,
                    address,
                    port,
                    order.run,
                    len(orders),
                    tuple(
                        one.run.microbatches for one in orders if isinstance(one.run, TrainingRun)
                    ),
                    scratch,
                    allowance,
                    order.passes_s,
                )
            )
        with ranks.others_busy(count):
            answers = ranks.collect(count, user, set_links)
    clocks = active_clocks(begun, nics.time_s[-1])
    by_turn: list[tuple[Any, ...]] = list(zip(*answers, strict=True))
    return [
        Outcome(
            tuple(retimed(one, clocks[turn]) for one in found if isinstance(one, RankRecord)),
            clocks[turn].cut(nics),
            tuple(replace(one, set_gbps=one.set_gbps / slowed[turn]) for one in checks[turn]),
            latencies_s[turn],
            tuple(one for one in found if isinstance(one, SweepRecord)),
            spent_s=({} if turn else {"checking links": checking_s})
            | _spent_s(clocks[turn], found, first=turn == 0),
        )
        for turn, found in enumerate(by_turn)
    ]


def _spent_s(clock: ActiveClock, found: Sequence[Any], *, first: bool) -> dict[str, float]:
    """Where the time of one turn's measurement went, as rank 0 has it; the first turn warms up."""
    whole_s = sum(end - start for start, end in clock.windows_s)
    known_s: dict[str, float] = {}
    if isinstance(record := found[0], RankRecord):
        known_s = {
            **(record.before_s if first else {}),
            "recorded iterations": sum(record.iteration_time_s),
            "validations and checkpoints": sum(one.end_s - one.start_s for one in record.spans),
        }
    return {**known_s, "between iterations": whole_s - sum(known_s.values())}


def _verify_speed(site: Site, ranks: RankProcesses, user: Connection) -> SpeedCheck | None:
    """Have one rank and all of them, which are warm, compute in turns, and compare."""
    if site.cores is None:
        return None
    cores = site.cores

    def turn() -> tuple[Passes, list[Passes]]:
        return _measure(1, ranks, user)[0], _measure(site.ranks, ranks, user)

    def check() -> SpeedCheck:
        turns.append(turn())
        return verify_speed(cores, turns)

    turns = deque((turn() for _ in range(_LEAST_TURNS - 1)), maxlen=_MOST_TURNS)
    return until_verified(check, partial(_say, user))


def _say(user: Connection, words: str) -> None:
    user.send(Waiting(words))


def _measure(count: int, ranks: RankProcesses, user: Connection) -> list[Passes]:
    """Passes of the first ranks while all compute."""
    for pipe in ranks.pipes[:count]:
        pipe.send(MeasurePasses())
    with ranks.others_busy(count):
        answers = ranks.collect(count, user)
    return [answer for answer in answers if isinstance(answer, Passes)]


def _environment(networked: bool) -> dict[str, str]:
    """Environment of the ranks: one thread each, no GPU, and the interface that gloo shall use."""
    return {
        # A machine may have real ones: they are not what is emulated.
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": UPLINK if networked else "lo",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
        # Megatron-Core asks for it where computation and communication overlap.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


def _free_port(previous: int, network: Network | None) -> int:
    """A port to meet at: in a namespace the next one, on the loopback one that nobody uses."""
    if network is not None:
        return previous + 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Supervise through the pipe given on the command line; the exit status is 0 or 1."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A plain kill unwinds like the end of the pipe does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if is_background():
        run_in_background()
    with Connection(int(sys.argv[1])) as user:
        try:
            supervise(user)
        except (EOFError, UserGone, BrokenPipeError, ConnectionResetError):
            pass
        except ReproError as error:
            user.send(Failure(str(error), unavailable=isinstance(error, NotRunHere)))
            sys.exit(1)


if __name__ == "__main__":
    main()
