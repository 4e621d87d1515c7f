"""A rank without a part in an order computes until it is told something, or nobody is there."""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest
from waiting import PATIENCE_S

# Loaded here, so that loading it does not count as the thread's computing.
import repro.train.pacing  # noqa: F401
from repro.launch.messages import Stop
from repro.launch.ranks.rank import measure_passes, stay_busy

pytestmark = pytest.mark.alone


@contextmanager
def _busy(rank: Connection) -> Iterator[list[float]]:
    """A rank that stays busy in a thread; afterwards the list has that thread's CPU time."""
    computed: list[float] = []

    def compute() -> None:
        stay_busy(rank, cores=0.5)
        computed.append(time.thread_time())

    # Not waited for at the interpreter's end, should it never return.
    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    yield computed
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it goes on computing"


def test_it_computes_until_there_is_a_message() -> None:
    supervisor, rank = multiprocessing.Pipe()
    began = time.monotonic()
    with _busy(rank) as computed:
        time.sleep(0.5)
        assert not computed, "it did not wait for a message"
        supervisor.send(Stop())
    # The message is left to whoever asked it to compute.
    assert rank.recv() == Stop()
    # It computed, and no more than its share of the time that passed, and a pass.
    assert 0 < computed[0] < 0.8 * (time.monotonic() - began)


def test_it_ends_with_the_pipe() -> None:
    supervisor, rank = multiprocessing.Pipe()
    with _busy(rank) as computed:
        time.sleep(0.1)
        assert not computed
        supervisor.close()
    with pytest.raises(EOFError):
        rank.recv()


class _Work:
    """Counts its products, which take no time."""

    def __init__(self) -> None:
        self.products = 0

    def __matmul__(self, other: object) -> None:
        self.products += 1


@pytest.mark.parametrize("cores", [0.2, 0.8, 0.001])
def test_checked_passes_take_as_long_at_any_share(
    cores: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking up takes the same time of each: in shorter passes it looks like a lack of cores."""
    work, whole = _Work(), _Work()
    for one, share in ((work, cores), (whole, 1.0)):
        monkeypatch.setattr("torch.rand", lambda *_, one=one: one)
        passes = measure_passes(share)
    assert work.products == max(len(passes.wall_s), cores * whole.products)
