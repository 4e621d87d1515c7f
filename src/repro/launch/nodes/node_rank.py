"""One rank on a real node: reads a step, runs it, writes its answer, and waits for the next.

Run as `python -m repro.launch.nodes.node_rank FOLDER` by each task of srun or torchrun. A process
has one protocol and its groups, because NCCL reads its variables once.
"""

import gc
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import torch

from repro.atomic import replace_text, replacing
from repro.catalog.systems.protocols import Protocol, Variant, transport
from repro.collectives.records import CollectiveSweep, SweepRecord
from repro.errors import NotRunHere
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
from repro.launch.nodes.rank_environment import RankEnvironment, rank_environment
from repro.launch.nodes.transports import choose_adapters, gloo_environment, nccl_environment
from repro.launch.ranks.rank import failure_of
from repro.launch.request import groups_of
from repro.observe.adapters import read_interfaces, read_ports
from repro.observe.clocks import measure_offset
from repro.observe.counters import open_counters
from repro.observe.environment import accelerator
from repro.observe.nic import sample_counters
from repro.results.outcome import NodeAdapters, OutOfMemory
from repro.train.records import RankRecord

_POLL_S = 0.05


def main() -> None:
    """Serve as the rank of the environment's variables; the exit status is 0 or 1."""
    folder = Path(sys.argv[1])
    place = rank_environment(os.environ)
    with log_path(folder, place.rank).open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    for number in count():
        step = _next_step(step_path(folder, number))
        if step is None:
            break
        answer: Answer | Failure | OutOfMemory
        try:
            answer = _work(place, step, folder, number)
        except NotRunHere as error:
            answer = Failure(f"{socket.gethostname()}: {error}", unavailable=True)
        except BaseException as error:
            traceback.print_exc()
            answer = failure_of(place.rank, error)
        sys.stderr.flush()
        with replacing(answer_path(folder, number, place.rank)) as path:
            path.write_bytes(pickle.dumps(answer))
        if not isinstance(answer, Answer):
            os._exit(1)
    # Process groups have threads that would outlive an orderly shutdown, or hang in it after a
    # failure.
    os._exit(0)


def _next_step(path: Path) -> Step | None:
    """Return the next step when its file is there; None if the launcher has ended."""
    launcher = os.getppid()
    # Listing the folder refreshes it where another node writes into it.
    while path.name not in os.listdir(path.parent):
        if os.getppid() != launcher:
            return None
        time.sleep(_POLL_S)
    step: Step | None = pickle.loads(path.read_bytes())
    return step


def _work(place: RankEnvironment, step: Step, folder: Path, number: int) -> Answer:
    on_gpu = torch.cuda.is_available()
    interfaces = read_interfaces()
    entry = transport(step.request.protocol)
    # A single rank sends nothing, so its node needs no adapter.
    alone = place.ranks == 1
    used = () if alone else choose_adapters(entry, read_ports(), interfaces, step.adapters)
    if number == 0:
        _prepare(entry, used, place, nccl_log_path(folder, place.rank), on_gpu)

    # Megatron-Core takes seconds to load; a node that lacks the protocol has failed before.
    import repro.train.megatron.uncompiled  # noqa: F401  (before anything of Megatron-Core)
    from repro.collectives.sweep import sweep
    from repro.train.megatron.groups import join_groups
    from repro.train.run import device_scope, train

    def report(done: int, _: str) -> None:
        if place.rank == 0:
            replace_text(done_path(folder, number), str(done))

    run = step.request.run
    with ExitStack() as stack:
        stack.enter_context(device_scope())
        if number == 0:
            join_groups(place.rank, place.ranks, place.address, place.port, *groups_of(run))
        # Memory of the step before must not count as this one's.
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
        adapters = stack.enter_context(_node_adapters()) if place.local_rank == 0 else None
        before = measure_offset()
        record: RankRecord | SweepRecord
        if isinstance(run, CollectiveSweep):
            (record,) = sweep(run, report=report)
        else:
            (record,) = train(run, folder / "scratch", report)
        # No rank continues while another one sends.
        after = measure_offset()
    return Answer(
        record,
        (before, after),
        socket.gethostname(),
        used,
        {one.name: one.kind for one in interfaces},
        adapters,
        accelerator(),
    )


def _prepare(
    entry: Protocol | Variant,
    used: Sequence[str],
    place: RankEnvironment,
    nccl_log: Path,
    on_gpu: bool,
) -> None:
    """Set the backend's variables, and the GPU or the number of threads."""
    os.environ.update(_environment(entry, used, nccl_log, on_gpu))
    if on_gpu:
        # Some clusters show every task its own GPU only.
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    else:
        torch.set_num_threads(1)


def _environment(
    entry: Protocol | Variant, used: Sequence[str], nccl_log: Path, on_gpu: bool
) -> dict[str, str]:
    """Return variables of the backend, which reads them once; a single rank has no adapters."""
    if not on_gpu:
        return gloo_environment(entry, used) if used else {}
    return {
        **(nccl_environment(entry, used) if used else {}),
        "NCCL_DEBUG_FILE": str(nccl_log),
        # Megatron-Core asks for it where computation and communication overlap.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


@contextmanager
def _node_adapters() -> Iterator[NodeAdapters]:
    """Sample all counters of this node as long as the context lasts."""
    with open_counters() as counters, sample_counters(counters.read) as series:
        yield NodeAdapters(socket.gethostname(), counters.names, series, counters.failures)


if __name__ == "__main__":
    main()
