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
    window
        Messages in flight, whose latencies overlap; `time_us` is their time divided by them.

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
    window: int = 1


# Measurements in the log's order, and a line for each skipped part: its place and the reason.
Reading = tuple[list[Measurement], list[str]]

COLUMNS = tuple(field.name for field in fields(Measurement))


# No message has more bytes, and no group more ranks.
_MOST_BYTES, _MOST_RANKS = 2**60, 2**24


def check(size_bytes: int, time_us: float) -> None:
    """Raise a ValueError if a size is no message's, or a time not positive and finite."""
    if size_bytes <= 0:
        raise ValueError("no bytes to move")
    if size_bytes > _MOST_BYTES:
        raise ValueError("more bytes than any message has")
    if not (math.isfinite(time_us) and time_us > 0):
        raise ValueError(f"its time is {time_us:g} us")


def measured(
    collective: str,
    dtype: str | None,
    size_bytes: int,
    ranks: int,
    time_us: float,
    nodes: int | None = None,
    window: int = 1,
) -> Measurement:
    """Return a measurement with bandwidths computed from size and time.

    Use it for logs that define bandwidths differently and do not contain whether the output
    replaced the input.

    Raises
    ------
    ValueError
        The size is not positive, the time is not a positive number, or there is one rank.

    Examples
    --------
    >>> f'{measured("send_recv", None, 1_000_000, ranks=2, time_us=100.0).busbw_GBps:.1f}'
    '10.0'
    """
    check(size_bytes, time_us)
    if ranks < 2:
        raise ValueError(f"{ranks} rank exchanges nothing: there is nothing to judge")
    if ranks > _MOST_RANKS:
        raise ValueError("more ranks than any group has")
    seconds = time_us * 1e-6
    return Measurement(
        collective=collective,
        dtype=dtype,
        size_bytes=size_bytes,
        ranks=ranks,
        nodes=nodes,
        in_place=False,
        time_us=time_us,
        algbw_GBps=float(algbw_GBps(size_bytes, seconds)),
        busbw_GBps=float(busbw_GBps(collective, ranks, size_bytes, seconds)),
        window=window,
    )


def require_ranks(ranks: int | None) -> int:
    """Return the number of ranks.

    Raises
    ------
    RanksMissing
        The number is None: neither the log nor the caller has it.
    """
    if ranks is None:
        raise RanksMissing("does not contain the number of ranks; fix: give --ranks N")
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
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
# Prefixes of launchers and log collectors: quotes, times, ranks and hosts (which have a digit).
_PREFIX = re.compile(
    r"""\s*(?:
        >[ ]?
        | \[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?
          (?:[ ]std(?:out|err)[ ][FP])?(?:[ ]|$)
        | \[(?=[^\]]*\d)[\w.-]+(?:[,:/][\w.-]+)*\]:?(?:[ ]|$|(?=\#))
        | (?=[\w.-]*\d)[\w.-]+[ ]?\|(?:[ ]|$)
        | (?=[\w.-]*\d)[\w.-]+:(?:[ ]|$|(?=\#))
    )""",
    re.VERBOSE,
)
# Longer lines hold data, not rows.
_LONGEST_LINE = 20_000


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines, numbered from 1, without prefixes of launchers, colours and trailing blanks.

    Examples
    --------
    >>> list(numbered_lines("[1,0]<stdout>:# size  time"))
    [(1, '# size  time')]
    >>> list(numbered_lines("2025-05-01T12:00:00.5Z worker-0:  1024  12.5"))
    [(1, ' 1024  12.5')]
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > _LONGEST_LINE:
            continue
        plain = _TAG.sub("", _ESCAPES.sub("", line))
        while found := _PREFIX.match(plain):
            plain = plain[found.end() :]
        yield number, plain.rstrip()
