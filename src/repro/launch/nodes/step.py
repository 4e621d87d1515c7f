"""Steps of ranks on real nodes: start ranks, wait, convert their answers to one clock.

Each step proves which network its traffic took. Ranks stay for the next request with the same
protocol, rank count and groups.
"""

import os
import pickle
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from repro.atomic import replacing
from repro.catalog.systems.nodes import Nodes
from repro.catalog.systems.protocols import transport
from repro.collectives.records import SweepRecord
from repro.errors import ProtocolMissing, ReproError
from repro.launch.execution import Run
from repro.launch.messages import Failure
from repro.launch.nodes.files import (
    Answer,
    Step,
    answer_path,
    done_path,
    log_path,
    nccl_log_path,
    step_path,
)
from repro.launch.nodes.min_traffic import min_inter_node_bytes
from repro.launch.nodes.transports import prove_bytes, prove_routes
from repro.launch.request import Request, groups_of
from repro.observe.clock_offsets import on_rank0_clock
from repro.observe.nccl_log import read_nccl_log
from repro.observe.nic import NicSeries, TrafficDirection
from repro.results.outcome import NodeAdapters, Outcome, OutOfMemory
from repro.results.schema import iteration_spans
from repro.testbed.kernel import die_with_parent
from repro.train.records import RankRecord, Report, retimed

_POLL_S = 0.2
# Time in which a launcher ends its ranks.
_END_S = 20
_LOG_LINES = 5

# Returns the command that starts so many ranks, which communicate through the folder.
Start = Callable[[int, Path], list[str]]


@contextmanager
def in_steps(nodes: Nodes, start: Start, folder: Path) -> Iterator[Run[Any]]:
    """Yield a function that runs requests as steps of ranks, which end with this context."""
    with ExitStack() as stack:
        # The waiting ranks, and their protocol, number and groups.
        waiting: list[tuple[object, Ranks]] = []

        def run(group: Sequence[Request[Any]], report: Report) -> Sequence[Outcome] | OutOfMemory:
            # NCCL reads its variables once in a process, so protocols cannot be interleaved.
            (request,) = group
            kind = (request.protocol, request.ranks, groups_of(request.run))
            if not waiting or waiting[0][0] != kind or waiting[0][1].over:
                waiting.clear()
                stack.close()
                words = "".join(letter if letter.isalnum() else " " for letter in request.label)
                own = folder / "-".join(words.split())
                waiting.append((kind, stack.enter_context(started(start, request.ranks, own))))
            adapters = nodes.adapters.get(request.protocol, ())
            outcome = waiting[0][1].run(request, adapters, lambda done: report(done, ""))
            return outcome if isinstance(outcome, OutOfMemory) else [outcome]

        yield run


@dataclass
class Ranks:
    """Ranks that were started, the folder of their files, and the steps so far.

    They are `over` after a step that failed.
    """

    launcher: "subprocess.Popen[bytes]"
    count: int
    folder: Path
    steps: int = field(default=0, init=False)
    over: bool = field(default=False, init=False)

    def run(
        self, request: Request[Any], adapters: Sequence[str], report: Callable[[int], None]
    ) -> Outcome | OutOfMemory:
        """Run a request, and return its outcome.

        Parameters
        ----------
        adapters
            Adapters of the protocol, by name; none: all that suit.
        report
            Function called with the steps done so far.

        Raises
        ------
        ProtocolMissing
            A node cannot use the protocol.
        ReproError
            A rank failed, or the traffic took another network than the protocol's.
        """
        number, self.over = self.steps, True
        self.steps += 1
        self.tell(Step(replace(request, dataset=None), tuple(adapters)), number)
        paths = [answer_path(self.folder, number, rank) for rank in range(self.count)]
        while not self._answered(paths) and self.launcher.poll() is None:
            time.sleep(_POLL_S)
            done = done_path(self.folder, number)
            if done.exists():
                report(int(done.read_text(encoding="utf-8")))
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        answers = _answers(self.folder, paths, self.launcher)
        if isinstance(answers, OutOfMemory):
            return answers
        outcome = _outcome(request, answers, self.folder)
        self.over = False
        return outcome

    def tell(self, step: Step | None, number: int) -> None:
        """Write the ranks' next step; None ends them."""
        with replacing(step_path(self.folder, number)) as path:
            path.write_bytes(pickle.dumps(step))

    def _answered(self, paths: Sequence[Path]) -> bool:
        return {path.name for path in paths} <= set(os.listdir(self.folder))


@contextmanager
def started(start: Start, ranks: int, folder: Path) -> Iterator[Ranks]:
    """Start ranks, which end with this context and with this process.

    Parameters
    ----------
    folder
        Folder of these ranks, which all nodes see; logs stay there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    with (
        (folder / "launcher.log").open("wb") as log,
        subprocess.Popen(
            start(ranks, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C reaches the user's process, which then ends this one.
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        ) as launcher,
    ):
        here = Ranks(launcher, ranks, folder)
        try:
            yield here
            here.tell(None, here.steps)
            launcher.wait(_END_S)
        except BaseException as error:
            launcher.terminate()
            try:
                launcher.wait(_END_S)
            except subprocess.TimeoutExpired:
                os.killpg(launcher.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise


def _answers(
    folder: Path, paths: Sequence[Path], launcher: "subprocess.Popen[bytes]"
) -> list[Answer] | OutOfMemory:
    """Return every rank's answer, in order, or that one ran out of memory."""
    found: dict[int, Answer | Failure | OutOfMemory] = {}
    # In the order in which ranks ended: neighbours of a failed rank fail after it.
    for path in sorted((path for path in paths if path.exists()), key=lambda p: p.stat().st_mtime):
        found[paths.index(path)] = pickle.loads(path.read_bytes())
        path.unlink()
    for answer in found.values():
        if isinstance(answer, OutOfMemory):
            return answer
    failed = [(rank, one) for rank, one in found.items() if isinstance(one, Failure)]
    for _, failure in failed:
        if failure.unavailable:
            raise ProtocolMissing(failure.message)
    for rank, failure in failed:
        raise ReproError(f"rank {rank} failed: {failure.message}; logs are in {folder}")
    for rank in range(len(paths)):
        if rank not in found:
            raise ReproError(
                f"rank {rank} ended without an answer and the launcher with exit code "
                f"{launcher.returncode}; last lines: {_last_lines(folder, rank)}; logs are in "
                f"{folder}"
            )
    return [one for _, one in sorted(found.items()) if isinstance(one, Answer)]


def _last_lines(folder: Path, rank: int) -> str:
    for path in (log_path(folder, rank), folder / "launcher.log"):
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        last = [line.strip() for line in lines if line.strip()][-_LOG_LINES:]
        if last:
            return " | ".join(last)
    return "(none)"


def _outcome(request: Request[Any], answers: Sequence[Answer], folder: Path) -> Outcome:
    records = [on_one_clock(answer) for answer in answers]
    trained = tuple(record for record in records if isinstance(record, RankRecord))
    swept = tuple(record for record in records if isinstance(record, SweepRecord))
    hosts = [answer.host for answer in answers]
    nodes = tuple(_node(answer) for answer in answers if answer.adapters is not None)
    used = {answer.host: answer.used for answer in answers}
    needed = min_inter_node_bytes(request.run, records, hosts)
    outcome = Outcome(
        records=trained,
        nics=_of_protocol(nodes, used),
        links=(),
        fabric_latency_s=0.0,
        sweeps=swept,
        adapters=nodes,
        min_inter_node_bytes=tuple(needed[node.host] for node in nodes),
        ran_on={
            **answers[0].accelerator,
            "configuration": request.label,
            "hosts": list(dict.fromkeys(hosts)),
            "adapters": {host: list(names) for host, names in used.items()},
        },
    )
    if len(nodes) < 2:
        return outcome
    return replace(outcome, ran_on={**outcome.ran_on, **_proof(request, answers, outcome, folder)})


def _proof(
    request: Request[Any], answers: Sequence[Answer], outcome: Outcome, folder: Path
) -> dict[str, object]:
    """Return the proof that traffic between nodes took the protocol's network.

    Raises
    ------
    ReproError
        The traffic took another network.
    """
    entry = transport(request.protocol)
    found: dict[str, object] = {}
    logs = [nccl_log_path(folder, rank) for rank in range(len(answers))]
    if text := "\n".join(path.read_text(errors="replace") for path in logs if path.exists()):
        log = read_nccl_log(text)
        prove_routes(entry, log, {k: v for answer in answers for k, v in answer.kinds.items()})
        routes = Counter(
            f"NET/{route.network}{'/GDRDMA' if route.gpudirect else ''}" for route in log.routes
        )
        found["routes"] = dict(routes)
    uncounted = []
    used = {answer.host: answer.used for answer in answers}
    for node, needed in zip(outcome.adapters, outcome.min_inter_node_bytes, strict=True):
        names = _counting(node, used[node.host])
        if not names:
            uncounted.append(node.host)
            continue
        window = _window(outcome.records)
        counted = {name: _sent(node, name, window) for name in names}
        prove_bytes(entry, node.host, needed, counted)
    if uncounted and not found:
        raise ReproError(
            f"protocol {entry.label} is not proven: no counters of its adapters can be read on "
            f"{', '.join(uncounted)}, and there is no NCCL log"
        )
    return {**found, "bytes_proven": not uncounted and min(outcome.min_inter_node_bytes) > 0}


def _counting(node: NodeAdapters, used: Sequence[str]) -> list[str]:
    """Return the adapters of the protocol; none if not all of them have counted to the end."""
    names = [name for name in used if name in node.names]
    return [] if any(name in node.failures for name in names) else names


def _window(records: Sequence[RankRecord]) -> tuple[float, float]:
    """Return the span of the recorded iterations; all time without training."""
    if not records:
        return -np.inf, np.inf
    starts, ends = iteration_spans(records)
    return float(starts[0]), float(ends[-1])


def _sent(node: NodeAdapters, name: str, window: tuple[float, float]) -> int:
    first, last = node.series.at("sent", window)[node.names.index(name)]
    return int(last - first)


def on_one_clock(answer: Answer) -> RankRecord | SweepRecord:
    """Return a record with its times on rank 0's clock."""
    record = answer.record
    if isinstance(record, SweepRecord):
        return record

    return retimed(record, lambda time_s: on_rank0_clock(time_s, *answer.clock))


def _node(answer: Answer) -> NodeAdapters:
    """Return a node's counters, with their times on rank 0's clock."""
    assert answer.adapters is not None
    series = answer.adapters.series
    times = on_rank0_clock(np.array(series.time_s), *answer.clock).tolist()
    return replace(answer.adapters, series=replace(series, time_s=times))


def _of_protocol(nodes: Sequence[NodeAdapters], used: dict[str, tuple[str, ...]]) -> NicSeries:
    """Return the bytes of each node's adapters of the protocol, at the first node's samples.

    Counters are cumulative, so the line between two samples is right on average. A node whose
    adapters did not count has NaN.
    """
    if not nodes:
        return NicSeries()
    times = nodes[0].series.time_s
    carried: dict[TrafficDirection, list[tuple[float, ...]]] = {}
    for way in get_args(TrafficDirection):
        columns = []
        for node in nodes:
            chosen = [node.names.index(name) for name in _counting(node, used[node.host])]
            found = node.series.at(way, times)[chosen].sum(axis=0)
            columns.append(np.rint(found) if chosen else np.full(len(times), np.nan))
        carried[way] = [tuple(row) for row in np.array(columns).T.tolist()]
    return NicSeries(list(times), carried["received"], carried["sent"])
