"""Messages between the user's process, the supervisor of a pool of ranks, and the ranks.

They are pickled through pipes between processes of one machine.
"""

from dataclasses import dataclass
from pathlib import Path

from repro.collectives.records import CollectiveSweep
from repro.train.records import TrainingRun


@dataclass(frozen=True)
class Ready:
    """All ranks have started, and keep their pace."""


@dataclass(frozen=True)
class Join:
    """Supervisor to rank: connect `ranks` ranks at this address, then work.

    `interleaved` requests run round robin, each over its own links, and training with its
    own number of `microbatches`. `scratch` is a folder for the ranks. `memory_bytes` is what the
    rank may allocate; None: no limit. `passes_s` are the request's.
    """

    ranks: int
    address: str
    port: int
    run: TrainingRun | CollectiveSweep
    interleaved: int
    microbatches: tuple[int, ...]
    scratch: Path
    memory_bytes: int | None
    passes_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class SetLinks:
    """Rank 0 asks the supervisor for the link rates of request `number`, divided by `slowdown`.

    The supervisor sends the same message to all ranks when links have them.
    """

    number: int
    slowdown: float


@dataclass(frozen=True)
class MeasurePasses:
    """Supervisor to rank: compute some passes of the same work, and send their times."""


@dataclass(frozen=True)
class StayBusy:
    """Supervisor to rank: compute until the next message, because the request is for others.

    Caches and clocks of idle cores cool, and few ranks would compute up to half slower than many.
    With all shares in use, every request runs on the same machine.
    """


@dataclass(frozen=True)
class Stop:
    """Supervisor to rank: the request is done."""


@dataclass(frozen=True)
class Progress:
    """Iterations, or cases of a sweep, that are done; and a text for the progress bar."""

    steps: int
    text: str = ""


@dataclass(frozen=True)
class Waiting:
    """Supervisor to user: cause why a check before the measurement does not pass yet."""

    text: str


@dataclass(frozen=True)
class Failure:
    """Cause of a failure, as a message for the user.

    `unavailable`: this machine cannot run the request at all.
    """

    message: str
    unavailable: bool = False
