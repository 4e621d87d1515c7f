"""Measurements that readers of logs return, with nccl-tests' size and bandwidths."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import pandas as pd

from repro.collectives.definitions import algbw_GBps, busbw_GBps
from repro.errors import ReproError

POINT_TO_POINT = 2  # ranks of a send and its receive


class RanksMissing(ReproError):
    """Error of a log that does not contain the number of ranks."""


@dataclass(frozen=True)
class Measurement:
    """One time of one collective.

    Attributes
    ----------
    collective
        One of `repro.catalog.studies.collectives.COLLECTIVES`.
    dtype
        Element type by nccl-tests' name; None if the log does not contain it.
    size_bytes
        Size by nccl-tests' definition: all ranks' data together for all_gather, reduce_scatter and
        all_to_all, one rank's data for the others.
    ranks
        Number of ranks.
    nodes
        Number of hosts; None if the log does not name them.
    in_place
        Whether the output replaced the input; False if the log does not contain it.
    time_us
        Time, in microseconds.
    algbw_GBps, busbw_GBps
        Bandwidths as in `repro.collectives.definitions`, in 1e9 B/s.

    Examples
    --------
    >>> one = measured("all_reduce", "float", 2**20, ranks=4, time_us=100.0)
    >>> f"{one.algbw_GBps:.1f} {one.busbw_GBps:.1f}"
    '10.5 15.7'
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


# Measurements in the log's order, and a line for each skipped part: its place and the reason.
Reading = tuple[list[Measurement], list[str]]

COLUMNS = tuple(field.name for field in fields(Measurement))


def check(size_bytes: int, time_us: float) -> None:
    """Raise a ValueError if a size is not positive, or a time not positive and finite."""
    if size_bytes <= 0:
        raise ValueError("no bytes to move")
    if not (math.isfinite(time_us) and time_us > 0):
        raise ValueError(f"its time is {time_us:g} us")


def measured(
    collective: str, dtype: str | None, size_bytes: int, ranks: int, time_us: float
) -> Measurement:
    """Return a measurement with bandwidths computed from size and time.

    Use it for logs that define bandwidths differently. Such logs contain neither hosts nor whether
    the output replaced the input.

    Raises
    ------
    ValueError
        The size is not positive, or the time is not a positive number.

    Examples
    --------
    >>> f'{measured("send_recv", None, 1_000_000, ranks=2, time_us=100.0).busbw_GBps:.1f}'
    '10.0'
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


def require_ranks(ranks: int | None) -> int:
    """Return the number of ranks.

    Raises
    ------
    RanksMissing
        The number is None: neither the log nor the caller has it.
    """
    if ranks is None:
        raise RanksMissing("does not contain the number of ranks; fix: pass ranks=N (--ranks N)")
    return ranks


def as_frame(rows: Sequence[Measurement], skipped: Sequence[str]) -> pd.DataFrame:
    """Return a table with a row per measurement, and skipped parts in `attrs["skipped"]`."""
    frame = pd.DataFrame([vars(row) for row in rows], columns=list(COLUMNS))
    # Keep None for missing values: pandas would use NaN and change the column to floats.
    for name in ("dtype", "nodes"):
        frame[name] = pd.Series([getattr(row, name) for row in rows], dtype=object)
    frame.attrs["skipped"] = tuple(skipped)
    return frame


# Tags of mpirun --tag-output; also within a line that the program wrote in several parts.
_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>: ?")


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines, numbered from 1, without mpirun's tags and trailing blanks.

    Examples
    --------
    >>> list(numbered_lines("[1,0]<stdout>:# size  time"))
    [(1, '# size  time')]
    """
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, _TAG.sub("", line).rstrip()
