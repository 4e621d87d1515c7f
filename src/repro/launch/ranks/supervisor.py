"""Supervisor of a pool of ranks: builds their network, starts them, sends them work, cleans up.

Run as `python -m repro.launch.ranks.supervisor FD`, where FD is a pipe to the user's process. It is
a separate process because the user's, such as a notebook's kernel, has threads and must keep its
namespaces. Everything ends when the pipe closes, however the user's process ended.
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

from repro.collectives.records import SweepRecord
from repro.errors import NotRunHere, ReproError
from repro.launch.messages import Failure, Join, MeasurePasses, Ready, Waiting
from repro.launch.ranks.processes import ClientDisconnected, RankOutOfMemory, RankProcesses
from repro.launch.request import PoolSpec, Request, groups_of
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
# Rounds of the check of the ranks' speed, at least and at most. One rank and all of them alternate,
# because a machine's speed drifts.
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 12


def supervise(user: Connection) -> None:
    """Serve one pool until the user closes the pipe."""
    spec: PoolSpec = user.recv()
    with ExitStack() as stack:
        scratch = stack.enter_context(owned_folder())
        network = None
        if spec.topology is not None:
            network = stack.enter_context(build_network(spec.topology))
        os.environ.update(_environment(network is not None))

        def start(known: SpeedCheck | None) -> tuple[RankProcesses, SpeedCheck | None, float]:
            began = time.monotonic()
            started = RankProcesses(spec, network, scratch)
            stack.callback(started.terminate)
            # Ranks that are still starting would disturb the next check.
            _measure(spec.ranks, started, user)
            speed = known or _verify_speed(spec, started, user)
            return started, speed, time.monotonic() - began

        ranks, speed, starting_s = start(None)
        user.send(Ready())
        lost = False
        # The first ranks that have done a run.
        warm = 0
        port, previous = _FIRST_PORT, None
        verified: list[LinkCheck] = []
        while True:
            requests: tuple[Request[Any], ...] = user.recv()
            first = requests[0]
            if lost:
                ranks, speed, starting_s = start(speed)
                lost, previous, warm = False, None, 0
            # Ranks that form other groups connect at another port.
            stages, family, *split = groups_of(first.run)
            layout = (first.ranks, stages, family if stages > 1 else None, *split)
            if layout != previous:
                port, previous = _free_port(port, network), layout
            run = partial(_run, ranks, network, verified, scratch, port, user)
            try:
                if first.ranks > warm and first.memory_bytes and isinstance(first.run, TrainingRun):
                    smallest = replace(
                        first, run=_smallest(first.run), memory_bytes=(), passes_s=()
                    )
                    run((smallest,))
                found = run(requests)
                warm = max(warm, first.ranks)
                found[0].spent_s["starting ranks"] = starting_s
                starting_s = 0.0
                user.send([replace(outcome, speed=speed) for outcome in found])
            except RankOutOfMemory as error:
                ranks.terminate()
                lost = True
                user.send(error.found)


def _smallest(run: TrainingRun) -> TrainingRun:
    """Return the smallest run like this one, to run without limits.

    The first run of a process loads modules, which take many times the memory of a small model.
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


def _run(
    ranks: RankProcesses,
    network: Network | None,
    verified: list[LinkCheck],
    scratch: Path,
    port: int,
    user: Connection,
    requests: Sequence[Request[Any]],
) -> list[Outcome]:
    """Run requests of the same work interleaved; return one outcome for each."""
    first = requests[0]
    count = first.ranks
    nodes: tuple[Namespace, ...] = ()
    checks: list[tuple[LinkCheck, ...]] = [() for _ in requests]
    latencies_s = [0.0 for _ in requests]
    slowdowns = [1.0 for _ in requests]
    begun: list[tuple[int, float]] = []

    def set_links(number: int, slowdown: float = 1.0) -> None:
        if network is not None:
            request = requests[number]
            rates = {name: rate / slowdown for name, rate in request.rates_gbps.items()}
            set_rates(network, rates)
            latencies_s[number] = set_fabric_latency(network, request.fabric_latency_s * slowdown)
        slowdowns[number] = slowdown
        begun.append((number, time.monotonic()))

    started = time.monotonic()
    if network is not None:
        nodes = network.nodes[: network.topology.node_of(count - 1) + 1]
        # The rates of the first request last, so that they are in force.
        for number in reversed(range(len(requests))):
            set_links(number)
            rates = dict(requests[number].rates_gbps)
            checks[number] = verify_links(network, rates, count, verified, partial(_say, user))
    checking_s = time.monotonic() - started
    address = network.addresses[0] if network else "127.0.0.1"
    with sample_counters(lambda: [read_uplink_bytes(node) for node in nodes]) as nics:
        begun[:] = [(0, time.monotonic())]
        limits = first.memory_bytes or (None,) * count
        for pipe, limit in zip(ranks.pipes[:count], limits, strict=True):
            pipe.send(
                Join(
                    count,
                    address,
                    port,
                    first.run,
                    len(requests),
                    tuple(
                        request.run.microbatches
                        for request in requests
                        if isinstance(request.run, TrainingRun)
                    ),
                    scratch,
                    limit,
                    first.passes_s,
                )
            )
        with ranks.others_busy(count):
            answers = ranks.collect(count, user, set_links)
    clocks = active_clocks(begun, nics.time_s[-1])
    by_request: list[tuple[Any, ...]] = list(zip(*answers, strict=True))
    return [
        Outcome(
            tuple(retimed(one, clocks[number]) for one in found if isinstance(one, RankRecord)),
            clocks[number].cut(nics),
            tuple(
                replace(one, set_gbps=one.set_gbps / slowdowns[number]) for one in checks[number]
            ),
            latencies_s[number],
            tuple(one for one in found if isinstance(one, SweepRecord)),
            spent_s=({} if number else {"checking links": checking_s})
            | _spent_s(clocks[number], found, first=number == 0),
        )
        for number, found in enumerate(by_request)
    ]


def _spent_s(clock: ActiveClock, found: Sequence[Any], *, first: bool) -> dict[str, float]:
    """Return where the time of one request went on rank 0; the first request warms up."""
    whole_s = sum(end - start for start, end in clock.windows_s)
    known_s: dict[str, float] = {}
    if isinstance(record := found[0], RankRecord):
        known_s = {
            **(record.before_s if first else {}),
            "recorded iterations": sum(record.iteration_time_s),
            "validations and checkpoints": sum(one.end_s - one.start_s for one in record.spans),
        }
    return {**known_s, "between iterations": whole_s - sum(known_s.values())}


def _verify_speed(spec: PoolSpec, ranks: RankProcesses, user: Connection) -> SpeedCheck | None:
    """Compare the speed of one rank with that of all ranks, which are warmed up."""
    if spec.cores is None:
        return None
    cores = spec.cores

    def measure() -> tuple[Passes, list[Passes]]:
        return _measure(1, ranks, user)[0], _measure(spec.ranks, ranks, user)

    def check() -> SpeedCheck:
        rounds.append(measure())
        return verify_speed(cores, rounds)

    rounds = deque((measure() for _ in range(_LEAST_ROUNDS - 1)), maxlen=_MOST_ROUNDS)
    return until_verified(check, partial(_say, user))


def _say(user: Connection, text: str) -> None:
    user.send(Waiting(text))


def _measure(count: int, ranks: RankProcesses, user: Connection) -> list[Passes]:
    """Measure passes of the first ranks while all compute."""
    for pipe in ranks.pipes[:count]:
        pipe.send(MeasurePasses())
    with ranks.others_busy(count):
        answers = ranks.collect(count, user)
    return [answer for answer in answers if isinstance(answer, Passes)]


def _environment(networked: bool) -> dict[str, str]:
    """Return the environment of the ranks: one thread each, no GPU, the interface of gloo."""
    return {
        # Real GPUs of this machine are not used.
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
    """Return the port at which ranks connect: in a namespace the next one, else a free one."""
    if network is not None:
        return previous + 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Supervise through the pipe given on the command line; the exit status is 0 or 1."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIGTERM cleans up like the end of the pipe does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with Connection(int(sys.argv[1])) as user:
        try:
            supervise(user)
        except (EOFError, ClientDisconnected, BrokenPipeError, ConnectionResetError):
            pass
        except ReproError as error:
            user.send(Failure(str(error), unavailable=isinstance(error, NotRunHere)))
            sys.exit(1)


if __name__ == "__main__":
    main()
