"""Reader of OSU micro-benchmarks: times of collectives, times and rates between two ranks.

Formats and definitions are from the benchmarks' sources (c/mpi/collective/blocking/osu_*.c,
c/mpi/pt2pt/standard/osu_*.c and c/nccl/ of 7.x, c/util/osu_util_mpi.c for the printed columns).
The variants with NCCL and RCCL, on CUDA and ROCm, print the same with another title.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repro.logs.measurements import (
    POINT_TO_POINT,
    Measurement,
    Reading,
    measured,
    numbered_lines,
    require_ranks,
)

TITLE = re.compile(r"# OSU (?:(?:MPI|[A-Z]+CCL)(?:-[A-Z]+)? )?(?P<test>.+?) Test\b")


@dataclass(frozen=True)
class _Test:
    """Definition of a benchmark's columns.

    Attributes
    ----------
    per_rank
        Whether the printed size is that of one rank; nccl-tests' size is then `ranks` times as
        large.
    messages
        Messages that the printed rate counts per message time; 0 if a time is printed.
    program
        Name of its program, behind `osu_`.
    """

    collective: str
    program: str
    per_rank: bool = False
    messages: int = 0


# Each rank contributes `size` bytes in osu_allgather, and sends `size` bytes to each peer in
# osu_alltoall. osu_reduce_scatter divides `size` bytes over the ranks.
_TESTS: Mapping[str, _Test] = {
    "Allreduce Latency": _Test("all_reduce", "allreduce"),
    "Allgather Latency": _Test("all_gather", "allgather", per_rank=True),
    "Reduce_scatter Latency": _Test("reduce_scatter", "reduce_scatter"),
    "All-to-All Personalized Exchange Latency": _Test("all_to_all", "alltoall", per_rank=True),
    "Broadcast Latency": _Test("broadcast", "bcast"),
    "Reduce Latency": _Test("reduce", "reduce"),
    "Latency": _Test("send_recv", "latency"),
    "Bandwidth": _Test("send_recv", "bw", messages=1),
    "Bi-Directional Bandwidth": _Test("send_recv", "bibw", messages=2),
}
_PROGRAMS = {test.program: test for test in _TESTS.values()}
# A heading such as `--- osu_bw (D D) ---` above a table whose title was cut.
_HEADING = re.compile(r"\W*(?:\S*/)?osu_(\w+)\b")
# Remarks that people write behind values.
_REMARK = re.compile(r"\s*(?:\u2190|<-|#|//).*$")
# Messages in flight of osu_bw and osu_bibw, by default.
_WINDOW = 64
_DATATYPE = re.compile(r"# Datatype: (\w+)")
_DTYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float"}


def read_osu(text: str, ranks: int | None) -> Reading:
    """Read the output of one or several benchmarks.

    The size is converted to nccl-tests': multiplied by the ranks for all-gather and all-to-all, as
    printed for the others. The time of a collective is the mean over ranks and iterations, that of
    osu_latency half of a round trip. osu_bw and osu_bibw print MB/s (1e6 B/s) for windows of
    messages (64 by default), so the time of one message is size over rate; `window` is 64 there.
    osu_bibw counts both
    directions: its time, 2 x size over rate, is that of one message in each direction at once,
    which is nccl-tests' send_recv on two ranks.

    Parameters
    ----------
    text : str
        Content of the file.
    ranks
        Number of ranks of the collectives; no benchmark prints it.

    Raises
    ------
    RanksMissing
        The log has a collective, and `ranks` is None.
    """
    rows: list[Measurement] = []
    skipped: list[str] = []
    test: _Test | None = None
    dtype: str | None = None
    columns: list[str] = []
    for number, line in numbered_lines(text):
        if line.startswith("# OSU "):
            title = TITLE.match(line)
            test, dtype, columns = _TESTS.get(title["test"] if title else ""), None, []
            if test is None:
                tests = ", ".join(_TESTS)
                skipped.append(
                    f"line {number}: {line[2:]!r} is not supported; choose from: {tests}"
                )
        elif line.startswith("# Size  "):
            columns = re.split(r"\s{2,}", line.removeprefix("# "))
        elif heading := _HEADING.match(line):
            test, dtype, columns = _PROGRAMS.get(heading[1]), None, []
        elif datatype := _DATATYPE.match(line):
            dtype = _DTYPES.get(datatype[1], datatype[1])
        elif test and columns and line[:1].isdigit():
            n = POINT_TO_POINT if test.collective == "send_recv" else require_ranks(ranks)
            try:
                rows.append(_row(_REMARK.sub("", line).split(), columns, test, dtype, n))
            except ValueError as problem:
                skipped.append(f"line {number}: {problem}: {line[:60]!r}")
    return rows, skipped


def _row(
    words: Sequence[str], columns: Sequence[str], test: _Test, dtype: str | None, ranks: int
) -> Measurement:
    if len(words) != len(columns):
        raise ValueError(f"{len(words)} columns where the header has {len(columns)}")
    if len(columns) < 2:
        raise ValueError("the header is cut")
    row = dict(zip(columns, words, strict=True))
    unit = "(MB/s)" if test.messages else "(us)"
    if not columns[1].endswith(unit):
        raise ValueError(f"its column {columns[1]!r} is not in {unit}")
    if "Transmit Size" in row:
        raise ValueError("derived datatypes (-D) move another size than the printed one")
    if row.get("Validation", "Pass") != "Pass":
        raise ValueError(f"its validation is {row['Validation']!r}")
    size, printed = int(row["Size"][:20]), float(words[1])
    if test.messages and not printed > 0:
        raise ValueError(f"its rate is {printed:g} MB/s")
    time_us = test.messages * size / printed if test.messages else printed
    size_bytes = size * (ranks if test.per_rank else 1)
    window = _WINDOW if test.messages else 1
    measurement = measured(test.collective, dtype, size_bytes, ranks, time_us, window=window)
    if not re.fullmatch(r"\d+\.\d\d", words[1]):
        raise ValueError("its second column lacks the two decimals that are always printed")
    return measurement
