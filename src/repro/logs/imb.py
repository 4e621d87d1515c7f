"""Reader of Intel MPI Benchmarks: times of collectives and between two ranks.

Formats and definitions are from the IMB user guide and src_c/IMB_output.c: the printed size is that
of one rank's message, times are per repetition.
"""

import re
from collections.abc import Mapping, Sequence

from repro.logs.measurements import POINT_TO_POINT, Measurement, Reading, measured, numbered_lines

SIGN = r"#bytes\s+#repetitions\s"
# Collective of each benchmark, and whether the printed size is that of one of n equal parts.
_BENCHMARKS: Mapping[str, tuple[str, bool]] = {
    "Allreduce": ("all_reduce", False),
    "Allgather": ("all_gather", True),
    "Alltoall": ("all_to_all", True),
    "Reduce_scatter": ("reduce_scatter", False),
    "Reduce_scatter_block": ("reduce_scatter", True),
    "Bcast": ("broadcast", False),
    "Reduce": ("reduce", False),
    "PingPong": ("send_recv", False),
    "Sendrecv": ("send_recv", False),
}
_TITLE = re.compile(r"#\s*Benchmarking\s+(\S+)")
_PROCESSES = re.compile(r"#\s*#?processes\s*=\s*(\d{1,9})")
_HEADER = re.compile(rf"\s*{SIGN}")
# The mean over ranks, as nccl-tests prints; two ranks have one time.
_TIMES = ("t_avg[usec]", "t[usec]")


def read_imb(text: str) -> Reading:
    """Read the output of IMB-MPI1: a measurement per row.

    The size is converted to nccl-tests': multiplied by the ranks for all-gather and all-to-all. The
    time is the mean over ranks; that of PingPong is half of a round trip.
    """
    rows: list[Measurement] = []
    skipped: list[str] = []
    benchmark, ranks = "", 0
    columns: list[str] = []
    for number, line in numbered_lines(text):
        if title := _TITLE.match(line):
            benchmark, ranks, columns = title[1], 0, []
            if benchmark not in _BENCHMARKS:
                choices = ", ".join(_BENCHMARKS)
                skipped.append(f"line {number}: {benchmark!r} is not supported; choose: {choices}")
        elif processes := _PROCESSES.match(line):
            ranks = int(processes[1])
        elif _HEADER.match(line):
            columns = line.split()
        elif columns and benchmark in _BENCHMARKS and line.strip()[:1].isdigit():
            try:
                rows.append(_row(line.split(), columns, benchmark, ranks))
            except ValueError as problem:
                skipped.append(f"line {number}: {problem}: {line.strip()[:60]!r}")
    return rows, skipped


def _row(words: Sequence[str], columns: Sequence[str], benchmark: str, ranks: int) -> Measurement:
    if len(words) != len(columns):
        raise ValueError(f"{len(words)} columns where the header has {len(columns)}")
    time = next((name for name in _TIMES if name in columns), None)
    if time is None:
        raise ValueError(f"the header has none of {', '.join(_TIMES)}")
    if not ranks:
        raise ValueError("the line '# #processes = N' is missing")
    if not re.fullmatch(r"\d+\.\d\d", words[-1]):
        raise ValueError("its last column lacks the two decimals that are always printed")
    row = dict(zip(columns, words, strict=True))
    collective, part = _BENCHMARKS[benchmark]
    n = POINT_TO_POINT if benchmark == "PingPong" else ranks
    size = int(row["#bytes"]) * (n if part else 1)
    return measured(collective, None, size, n, float(row[time]))
