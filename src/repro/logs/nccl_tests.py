"""Read what nccl-tests print and write: bandwidths of collectives, as text or JSON.

The forms are those of nccl-tests' sources: `print_header` of each test until 2.0.0 (columns differ
by test, `error` in place of `#wrong`), `src/common.cu` from 2.11 on, and `src/util.cu`, which since
2.17 writes the JSON of `-J FILE` too. RCCL's fork prints the same.
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
from repro.logs.measurements import Measurement, Reading, check, known, numbered_lines
from repro.logs.truncated_json import read_json

# The programs, NAME_perf, whose results are read; the others are known to be refused by name.
_PROGRAMS = {
    **{name: name for name in ("all_reduce", "all_gather", "reduce_scatter")},
    **{name: name for name in ("broadcast", "reduce")},
    **{"alltoall": "all_to_all", "sendrecv": "send_recv"},
    **dict.fromkeys(("alltoallv", "gather", "scatter", "hypercube")),
}
# What the first versions' all-to-all, and it alone, has in its column of operators.
_BLANK_OPERATOR = "blank"
# Half of the last printed decimal of a bandwidth; and more ranks than any log has.
_ROUNDED, _MOST_RANKS = 0.005, 1 << 16
_PROGRAM = re.compile(rf"\b({'|'.join(_PROGRAMS)})_perf(?:_mpi)?\b")
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}


@dataclass(frozen=True)
class _Timing:
    """One size, in or out of place. `root` is -1 without one; `checked` says whether the results
    were compared with what they have to be."""

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
    """One program's run: its name where the file says it, its ranks by group, its hosts."""

    program: str | None = None
    groups: Counter[str] = field(default_factory=Counter)
    hosts: set[str] = field(default_factory=set)
    timings: list[_Timing] = field(default_factory=list)


def read_nccl_tests(text: str, collective: str | None, ranks: int | None) -> Reading:
    """Measurements of what a test printed, or wrote for `-J`. A text may hold several runs.

    Size, time and bandwidths are as the file has them: they are the definition. Text has two
    decimals, so that small messages show a bandwidth of 0.

    Parameters
    ----------
    text : str
        The file's content.
    collective, ranks
        Used where the file does not say.

    Raises
    ------
    ReproError
        The file does not say which collective or how many ranks it measured.
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
    # Where communicators are split, each group of the list is one.
    listed = max(run.groups.values()) if run.groups else ranks
    name = _PROGRAMS[run.program] if run.program else collective or _inferred(run.timings, listed)
    if name is None:
        problem = (
            f"{run.program}_perf is not read"
            if run.program
            else "does not say which collective it measured; name it (collective=NAME)"
        )
        raise ReproError(f"{problem}; choose from: {', '.join(COLLECTIVES)}")
    n = _ranks(run, name, listed, ranks, skipped)
    nodes = (len(run.hosts) or None) if n == listed else None
    for t in run.timings:
        yield Measurement(
            *(name, t.dtype, t.size_bytes, n, nodes, t.in_place, t.time_us, t.algbw, t.busbw)
        )


def _ranks(run: _Run, name: str, listed: int | None, given: int | None, skipped: list[str]) -> int:
    """The number of ranks: as listed, or as the printed bandwidths say it where the list is not
    there, not whole, or mangled; where they leave a choice, the one that was given.

    Raises
    ------
    ReproError
        Nothing says it, or what says it contradicts itself.
    """
    said = _by_bandwidths(name, run.timings)
    if said is None or listed in said:
        return known(listed)
    if len(said) != 1:
        if listed is None:
            return known(None)
        if given in said:
            skipped.append(f"the list of ranks: it has {listed}, and {given} are said to be")
            return given
        raise ReproError(
            f"{listed} ranks contradict the bandwidths of {name}, which are those of {said[0]} to "
            f"{said[-1]}; say how many there were (ranks=N)"
        )
    if listed is not None and not run.groups:
        raise ReproError(
            f"ranks is {listed}, but the bandwidths of {name} are those of {said[0]} ranks"
        )
    if listed is not None:
        skipped.append(
            f"the list of ranks: it has {listed}, and the bandwidths of {name} are those of "
            f"{said[0]}, which are taken"
        )
    return said[0]


def _by_bandwidths(name: str, timings: Sequence[_Timing]) -> list[int] | None:
    """Numbers of ranks that every row's bus over algorithm bandwidth allows; None if it says none.

    Both are rounded to two decimals. Until 2.0.0 the two of a gather or a scatter were the same.
    """
    a, b = (np.array([getattr(t, width) for t in timings]) for width in ("algbw", "busbw"))
    seen = a > _ROUNDED
    low = ((b - _ROUNDED)[seen] / (a + _ROUNDED)[seen]).max(initial=0.0)
    high = ((b + _ROUNDED)[seen] / (a - _ROUNDED)[seen]).min(initial=np.inf)
    counts = np.arange(1, _MOST_RANKS + 1)
    factors = bus_factor(name, counts)
    same = name != "all_reduce" and low <= 1 <= high
    if not seen.any() or same or factors[0] == factors[-1]:
        return None
    return counts[(factors >= low) & (factors <= high)].tolist() or None


def _inferred(timings: Sequence[_Timing], ranks: int | None) -> str | None:
    """The collective that a run's columns allow; None where several are left.

    A root is that of a broadcast, or of a reduction. Where `count` is a rank's share of the size,
    ranks contribute shares. all_reduce alone has a factor above 1; without the number of ranks
    nothing else is told. Tests that cannot run in place
    leave those results unchecked while the others are checked.
    """
    largest = max(timings, key=lambda timing: timing.busbw)
    if largest.redop == _BLANK_OPERATOR:
        return "all_to_all"
    width = _WIDTHS.get(largest.dtype)
    if ranks is None:
        return "all_reduce" if largest.busbw > 1.15 * largest.algbw > 0.1 else None
    if width is None or ranks < 2:
        return None
    shares = largest.size_bytes == largest.count * width * ranks
    reduces = largest.redop not in ("", "none")
    in_place = any(timing.checked for timing in timings if timing.in_place)
    compared = in_place or any(timing.checked for timing in timings)
    if largest.root >= 0:
        return None if shares else "reduce" if reduces else "broadcast"
    if shares and reduces:
        return "reduce_scatter"
    if not shares and ranks > 2 and largest.algbw >= 0.1:
        # Two decimals are enough to tell 2 (n-1)/n, 4/3 and more, from 1.
        return "all_reduce" if largest.busbw > 1.15 * largest.algbw else "send_recv"
    if not compared or not any(timing.in_place for timing in timings):
        return None
    if shares:
        return "all_gather" if in_place else "all_to_all"
    return "all_reduce" if in_place else "send_recv"


# Text.

_RANK = re.compile(r"#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_TIMES = ("time", "cputime")
# What stands for the out-of-place columns where only the in-place ones were measured.
_BLANK = re.compile(r"\S\s{20,}\S")


def _read_text(text: str, skipped: list[str]) -> list[_Run]:
    """Runs of a text, one after another; what looks like a row and is none goes to `skipped`."""
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
            # A timestamp is two words: day and time.
            header = [part for name in words[1:] for part in [name] * (1 + (name == "timestamp"))]
    return runs


def _row(line: str, header: Sequence[str]) -> list[_Timing]:
    """The one or two timings of a row, by the header's columns."""
    words, columns = line.split(), list(header)
    if "redop" in columns and "root" not in columns and len(words) == len(columns) - 1:
        # The first versions' all-to-all leaves its operator blank.
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
    # `error` was the largest difference from the right result; `#wrong` counts wrong elements.
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
    """The run of a JSON file; also of one that ends early, as that of a killed test does."""
    content, run = read_json(text, "results", skipped), _Run()
    config = content.get("config", {})
    program = _PROGRAM.search(str((content.get("args") or [""])[0]))
    run.program = program[1] if program else None
    # One device is listed for each process, which has nthreads x ngpus ranks.
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
    """The one or two timings of an object of `results`."""
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
