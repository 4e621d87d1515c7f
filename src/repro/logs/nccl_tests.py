"""Reader of nccl-tests' output: bandwidths of collectives, as text or JSON.

Formats are from nccl-tests' sources: `print_header` of each test until 2.0.0 (columns differ by
test, `error` instead of `#wrong`), `src/common.cu` since 2.11, and `src/util.cu`, which since 2.17
also writes the JSON of `-J FILE`. RCCL's fork prints the same.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repro.catalog.studies.collectives import COLLECTIVES
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.logs.measurements import Measurement, Reading, check, numbered_lines, require_ranks
from repro.logs.truncated_json import read_json

# Collective of each program NAME_perf; None for programs that are recognized but not supported.
_PROGRAMS = {
    **{name: name for name in ("all_reduce", "all_gather", "reduce_scatter")},
    **{name: name for name in ("broadcast", "reduce")},
    **{"alltoall": "all_to_all", "sendrecv": "send_recv"},
    **dict.fromkeys(("alltoallv", "gather", "scatter", "hypercube")),
}
# Operator of the all-to-all of early versions, the only test that leaves this column blank.
_BLANK_OPERATOR = "blank"
# Rounding error of a printed bandwidth (two decimals), and an upper limit of the number of ranks.
_ROUNDING, _MOST_RANKS = 0.005, 1 << 16
_PROGRAM = re.compile(rf"\b({'|'.join(_PROGRAMS)})_perf(?:_mpi)?\b")
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}


@dataclass(frozen=True)
class _Timing:
    """Timing of one size, in or out of place.

    `root` is -1 for collectives without one; `checked` is whether the results were verified.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    in_place: bool
    time_us: float
    algbw: float
    busbw: float
    checked: bool

    def __post_init__(self) -> None:
        check(self.size_bytes, self.time_us)


@dataclass
class _Run:
    """Run of one program: its name if the file has it, ranks by group, and hosts."""

    program: str | None = None
    groups: Counter[str] = field(default_factory=Counter)
    hosts: set[str] = field(default_factory=set)
    timings: list[_Timing] = field(default_factory=list)


def read_nccl_tests(text: str, collective: str | None, ranks: int | None) -> Reading:
    """Read the printed output of tests, or a JSON file of `-J`; a text may contain several runs.

    Size, time and bandwidths are taken from the file: nccl-tests defines them. Text has two
    decimals, so small messages have a bandwidth of 0.

    Parameters
    ----------
    text : str
        Content of the file.
    collective, ranks
        Used if the file does not contain them.

    Raises
    ------
    ReproError
        The collective or the number of ranks is missing or contradictory.
    """
    skipped: list[str] = []
    read = _read_json if text.lstrip().startswith("{") else _read_text
    runs = read(text, skipped)
    return [row for run in runs for row in _rows(run, collective, ranks, skipped)], skipped


def _rows(
    run: _Run, collective: str | None, ranks: int | None, skipped: list[str]
) -> Iterator[Measurement]:
    if not run.timings:
        return
    # With split communicators, the list of ranks has one group for each.
    listed = max(run.groups.values()) if run.groups else ranks
    name = (
        _PROGRAMS[run.program]
        if run.program
        else collective or _infer_collective(run.timings, listed)
    )
    if name is None:
        choices = ", ".join(COLLECTIVES)
        raise ReproError(
            f"{run.program}_perf is not supported; choose from: {choices}"
            if run.program
            else "does not contain the name of its collective; fix: pass collective=NAME "
            f"(--collective NAME); choose from: {choices}"
        )
    n = _ranks(run, name, listed, ranks, skipped)
    nodes = (len(run.hosts) or None) if n == listed else None
    for t in run.timings:
        yield Measurement(
            *(name, t.dtype, t.size_bytes, n, nodes, t.in_place, t.time_us, t.algbw, t.busbw)
        )


def _ranks(run: _Run, name: str, listed: int | None, given: int | None, skipped: list[str]) -> int:
    """Return the number of ranks.

    It is the listed number, unless the list is missing, incomplete or mangled: then the number
    that the printed bandwidths imply. If several numbers match the bandwidths, it is `given`.

    Raises
    ------
    ReproError
        The number is missing, or the list of ranks contradicts the bandwidths.
    """
    implied = _ranks_from_bandwidths(name, run.timings)
    if implied is None or listed in implied:
        return require_ranks(listed)
    if len(implied) != 1:
        if listed is None:
            return require_ranks(None)
        if given in implied:
            skipped.append(f"the list of ranks: it has {listed}; ranks={given} is used")
            return given
        raise ReproError(
            f"{listed} ranks contradict the bandwidths of {name}, which are those of {implied[0]} "
            f"to {implied[-1]} ranks; fix: pass ranks=N (--ranks N)"
        )
    if listed is not None and not run.groups:
        raise ReproError(
            f"ranks is {listed}, but the bandwidths of {name} are those of {implied[0]} ranks; "
            f"fix: pass ranks={implied[0]} (--ranks {implied[0]})"
        )
    if listed is not None:
        skipped.append(
            f"the list of ranks: it has {listed}; the bandwidths of {name} are those of "
            f"{implied[0]} ranks, which is used"
        )
    return implied[0]


def _ranks_from_bandwidths(name: str, timings: Sequence[_Timing]) -> list[int] | None:
    """Return the numbers of ranks that match all ratios of bus to algorithm bandwidth, or None.

    Both are rounded to two decimals. Until 2.0.0 the two of a gather or a scatter were equal.
    """
    a, b = (np.array([getattr(t, width) for t in timings]) for width in ("algbw", "busbw"))
    visible = a > _ROUNDING
    low = ((b - _ROUNDING)[visible] / (a + _ROUNDING)[visible]).max(initial=0.0)
    high = ((b + _ROUNDING)[visible] / (a - _ROUNDING)[visible]).min(initial=np.inf)
    counts = np.arange(1, _MOST_RANKS + 1)
    factors = bus_factor(name, counts)
    equal = name != "all_reduce" and low <= 1 <= high
    if not visible.any() or equal or factors[0] == factors[-1]:
        return None
    return counts[(factors >= low) & (factors <= high)].tolist() or None


def _infer_collective(timings: Sequence[_Timing], ranks: int | None) -> str | None:
    """Return the only collective that matches a run's columns; None if several match.

    Only a broadcast or a reduction has a root. If `count` is a rank's part of the size, the data
    are sharded. Only all_reduce has a factor above 1; without the number of ranks, only this is
    tested. Tests that cannot run in place leave in-place results unchecked and check the others.
    """
    largest = max(timings, key=lambda timing: timing.busbw)
    if largest.redop == _BLANK_OPERATOR:
        return "all_to_all"
    width = _WIDTHS.get(largest.dtype)
    if ranks is None:
        return "all_reduce" if largest.busbw > 1.15 * largest.algbw > 0.1 else None
    if width is None or ranks < 2:
        return None
    sharded = largest.size_bytes == largest.count * width * ranks
    reduces = largest.redop not in ("", "none")
    in_place = any(timing.checked for timing in timings if timing.in_place)
    verified = in_place or any(timing.checked for timing in timings)
    if largest.root >= 0:
        return None if sharded else "reduce" if reduces else "broadcast"
    if sharded and reduces:
        return "reduce_scatter"
    if not sharded and ranks > 2 and largest.algbw >= 0.1:
        # Two decimals are enough to distinguish 2 (n-1)/n, at least 4/3, from 1.
        return "all_reduce" if largest.busbw > 1.15 * largest.algbw else "send_recv"
    if not verified or not any(timing.in_place for timing in timings):
        return None
    if sharded:
        return "all_gather" if in_place else "all_to_all"
    return "all_reduce" if in_place else "send_recv"


# Text.

_RANK = re.compile(r"#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_TIMES = ("time", "cputime")
# Blanks in the place of the out-of-place columns if only in-place ones were measured.
_BLANK = re.compile(r"\S\s{20,}\S")


def _read_text(text: str, skipped: list[str]) -> list[_Run]:
    """Read the runs of a text; malformed rows are added to `skipped`."""
    runs = [_Run()]
    header: list[str] = []
    for number, padded in numbered_lines(text):
        line = padded.strip()
        words = line.replace("#", "# ", 1).split() if line.startswith("#") else line.split()
        if header and words and words[0].isdigit():
            try:
                runs[-1].timings += _row(line, header)
            except ValueError as problem:
                skipped.append(f"line {number}: {problem}: {line[:60]!r}")
            continue
        program = None if "concluded" in line else _PROGRAM.search(line)
        if runs[-1].timings and (program or words[:2] == ["#", "nThread"]):
            runs.append(_Run())
            header = []
        if program:
            runs[-1].program = program[1]
        elif rank := _RANK.match(line):
            runs[-1].groups[rank[1] or "0"] += 1
            runs[-1].hosts.add(rank[2])
        elif words[:4] == ["#", "size", "count", "type"]:
            # A timestamp has two words: day and time.
            header = [part for name in words[1:] for part in [name] * (1 + (name == "timestamp"))]
    return runs


def _row(line: str, header: Sequence[str]) -> list[_Timing]:
    """Read the one or two timings of a row, by the header's columns."""
    words, columns = line.split(), list(header)
    if "redop" in columns and "root" not in columns and len(words) == len(columns) - 1:
        # The all-to-all of early versions leaves its operator blank.
        words.insert(columns.index("redop"), _BLANK_OPERATOR)
    starts = [at for at, name in enumerate(columns) if name in _TIMES]
    in_place = [False, True][: len(starts)]
    if len(starts) == 2 and len(words) == len(columns) - (starts[1] - starts[0]):
        starts, in_place = starts[:1], [bool(_BLANK.search(line))]
    elif len(words) != len(columns):
        raise ValueError(f"{len(words)} columns where the header has {len(columns)}")
    label = dict(zip(columns, words, strict=False))
    return [
        _timing(label, place, words[at : at + 3], words[at + 3], columns[at + 3])
        for at, place in zip(starts, in_place, strict=True)
    ]


def _timing(
    label: Mapping[str, str], in_place: bool, values: Sequence[str], wrong: str, check: str
) -> _Timing:
    # `error` is the largest difference from the correct result; `#wrong` counts wrong elements.
    if check == "#wrong" and wrong != "N/A" and float(wrong) > 0:
        raise ValueError(f"{wrong} wrong elements")
    time_us, algbw, busbw = (float(value) for value in values)
    return _Timing(
        size_bytes=int(label["size"]),
        count=int(label["count"]),
        dtype=label["type"],
        redop=label.get("redop", ""),
        root=int(label.get("root", -1)),
        in_place=in_place,
        time_us=time_us,
        algbw=algbw,
        busbw=busbw,
        checked=wrong != "N/A",
    )


# JSON.


def _read_json(text: str, skipped: list[str]) -> list[_Run]:
    """Read the run of a JSON file, which may be truncated if the test was killed."""
    content, run = read_json(text, "results", skipped), _Run()
    config = content.get("config", {})
    program = _PROGRAM.search(str((content.get("args") or [""])[0]))
    run.program = program[1] if program else None
    # The list has one device per process, and each process has nthreads x ngpus ranks.
    for device in config.get("devices", []):
        ranks = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
        run.groups[str(device.get("group", 0))] += ranks
        run.hosts.update({str(device["hostname"])} if "hostname" in device else ())
    for number, record in enumerate(content.get("results", [])):
        try:
            run.timings += _record(record)
        except (KeyError, TypeError, ValueError) as problem:
            skipped.append(f"results[{number}]: {problem}")
    return [run]


def _record(record: Mapping[str, Any]) -> list[_Timing]:
    """Read the one or two timings of an object of `results`."""
    label = {name: str(record[name]) for name in ("size", "count", "type", "redop", "root")}
    timings = []
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        values = record.get(key)
        if values is not None:
            time = values["time"] if "time" in values else values["cpu_time"]
            wrong = "N/A" if values["nwrong"] is None else str(values["nwrong"])
            numbers = [str(value) for value in (time, values["alg_bw"], values["bus_bw"])]
            timings.append(_timing(label, in_place, numbers, wrong, "#wrong"))
    return timings
