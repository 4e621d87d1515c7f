"""What every reader of logs gives: measurements, with nccl-tests' size and bandwidths."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import pandas as pd

from repro.collectives.definitions import algbw_GBps, busbw_GBps
from repro.errors import ReproError

POINT_TO_POINT = 2  # ranks of a send and its receive


class RanksMissing(ReproError):
    """A log does not say how many ranks there were."""


@dataclass(frozen=True)
class Measurement:
    """One time of one collective.

    Attributes
    ----------
    collective
        One of `definitions.COLLECTIVES`.
    dtype
        As nccl-tests names it; None where the log does not say.
    size_bytes
        By nccl-tests' definition: all ranks' data together for all_gather, reduce_scatter and
        all_to_all (ranks x each rank's share), one rank's data for the others.
    ranks
        Ranks that took part.
    nodes
        Hosts; None where the log names none.
    in_place
        Whether the result replaced the input. False where the log does not say.
    time_us
        Microseconds.
    algbw_GBps, busbw_GBps
        By `definitions`, in 1e9 B/s.
    """

    collective: str
    dtype: str | None
    size_bytes: int
    ranks: int
    nodes: int | None
    in_place: bool
    time_us: float
    algbw_GBps: float
    busbw_GBps: float


# Measurements in the log's order, and what was not read: each with its place and why.
Reading = tuple[list[Measurement], list[str]]

COLUMNS = tuple(field.name for field in fields(Measurement))


def check(size_bytes: int, time_us: float) -> None:
    """Raise a ValueError where a size or a time measures nothing."""
    if size_bytes <= 0:
        raise ValueError("no bytes to move")
    if not (math.isfinite(time_us) and time_us > 0):
        raise ValueError(f"its time is {time_us:g} us")


def measured(
    collective: str, dtype: str | None, size_bytes: int, ranks: int, time_us: float
) -> Measurement:
    """A measurement of a log that defines bandwidths otherwise: they follow from size and time.

    Such logs name neither hosts nor whether the result replaced the input.

    Raises
    ------
    ValueError
        There is nothing to move, or the time is not a positive number.
    """
    check(size_bytes, time_us)
    seconds = time_us * 1e-6
    return Measurement(
        collective=collective,
        dtype=dtype,
        size_bytes=size_bytes,
        ranks=ranks,
        nodes=None,
        in_place=False,
        time_us=time_us,
        algbw_GBps=float(algbw_GBps(size_bytes, seconds)),
        busbw_GBps=float(busbw_GBps(collective, ranks, size_bytes, seconds)),
    )


def known(ranks: int | None) -> int:
    """The number of ranks, where the log itself does not say it.

    Raises
    ------
    RanksMissing
        The caller does not say it either.
    """
    if ranks is None:
        raise RanksMissing("lists no ranks; say how many there were (ranks=N)")
    return ranks


def as_frame(rows: Sequence[Measurement], skipped: Sequence[str]) -> pd.DataFrame:
    """A row per measurement; `attrs["skipped"]` lists what was not read."""
    frame = pd.DataFrame([vars(row) for row in rows], columns=list(COLUMNS))
    # What a log does not say stays None, which pandas would turn into NaN and its column to floats.
    for name in ("dtype", "nodes"):
        frame[name] = pd.Series([getattr(row, name) for row in rows], dtype=object)
    frame.attrs["skipped"] = tuple(skipped)
    return frame


# mpirun --tag-output; also inside a line, where the program wrote it in pieces.
_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>: ?")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines from 1 on, without mpirun's tags and the blanks at their ends."""
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, _TAG.sub("", line).rstrip()
