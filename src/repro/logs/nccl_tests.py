"""Reader of nccl-tests' output: bandwidths of collectives, as text or JSON.

Formats are from nccl-tests' sources: `print_header` of each test until 2.0.0 (columns differ by
test, `error` instead of `#wrong`), `src/common.cu` since 2.11, and `src/util.cu`, which since 2.17
also writes the JSON of `-J FILE`. RCCL's fork prints the same, with more columns.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repro.catalog.studies.collectives import COLLECTIVES
from repro.errors import ReproError
from repro.logs.inference import (
    BLANK_OPERATOR,
    WIDTHS,
    Timing,
    implied_ranks,
    infer_collective,
    shards,
)
from repro.logs.measurements import Measurement, Reading, numbered_lines, require_ranks
from repro.logs.truncated_json import read_json

# Collective of each program NAME_perf; None for programs that are recognized but not supported.
_PROGRAMS = {
    **{name: name for name in ("all_reduce", "all_gather", "reduce_scatter")},
    **{name: name for name in ("broadcast", "reduce")},
    **{"alltoall": "all_to_all", "sendrecv": "send_recv"},
    **dict.fromkeys(("alltoallv", "gather", "scatter", "hypercube")),
}
_PROGRAM = re.compile(rf"\b({'|'.join(_PROGRAMS)})_perf(?:_mpi)?\b")


@dataclass
class _Run:
    """Run of one program: its name if the file has it, ranks by group, hosts, and stated nodes."""

    program: str | None = None
    groups: dict[str, list[int]] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    nodes: int | None = None
    timings: list[Timing] = field(default_factory=list)

    @property
    def listed(self) -> int | None:
        """Ranks of the largest group: split communicators have one group each."""
        return max(map(len, self.groups.values())) if self.groups else None

    @property
    def elided(self) -> int | None:
        """Ranks of a list without groups that skips some; None if it is complete."""
        if len(self.groups) != 1:
            return None
        (ranks,) = self.groups.values()
        return max(ranks) + 1 if max(ranks) + 1 > len(ranks) else None


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
    rows = [row for run in runs for row in _rows(run, collective, ranks, skipped)]
    if not rows and not skipped and any(run.listed == 1 for run in runs):
        skipped.append("the run has 1 rank, which exchanges nothing: there is nothing to judge")
    return rows, skipped


def _rows(
    run: _Run, collective: str | None, ranks: int | None, skipped: list[str]
) -> Iterator[Measurement]:
    if not run.timings:
        return
    listed = run.elided or run.listed or ranks
    name = (
        _PROGRAMS[run.program]
        if run.program
        else collective or infer_collective(run.timings, listed)
    )
    if name is None:
        choices = ", ".join(COLLECTIVES)
        raise ReproError(
            f"{run.program}_perf is not supported; choose from: {choices}"
            if run.program
            else "does not contain the name of its collective; fix: give --collective NAME; "
            f"choose from: {choices}"
        )
    n = _ranks(run, name, listed, ranks, skipped)
    if n == 1:
        skipped.append("the run has 1 rank, which exchanges nothing: there is nothing to judge")
        return
    nodes = run.nodes or ((len(run.hosts) or None) if n == run.listed else None)
    for t in run.timings:
        yield Measurement(
            *(name, t.dtype, t.size_bytes, n, nodes, t.in_place, t.time_us, t.algbw, t.busbw)
        )


def _ranks(run: _Run, name: str, listed: int | None, given: int | None, skipped: list[str]) -> int:
    """Return the number of ranks.

    It is the listed number, unless the list is missing, incomplete or mangled: then the number
    that the printed bandwidths imply, or the counts of sharded data. If several numbers match the
    bandwidths, it is `given`.

    Raises
    ------
    ReproError
        The number is missing, or the list of ranks contradicts the bandwidths.
    """
    implied = implied_ranks(name, run.timings)
    if listed is not None and (implied is None or listed in implied):
        if run.elided:
            skipped.append(f"the list of ranks: it skips some; {listed} ranks are used")
        return listed
    parts = shards(run.timings)
    if implied is not None and len(implied) > 1 and parts in implied:
        implied = [parts]
    if implied is None:
        return require_ranks(listed)
    if len(implied) != 1:
        if listed is None:
            return require_ranks(None)
        if given in implied:
            skipped.append(f"the list of ranks: it has {listed}; --ranks {given} is used")
            return given
        raise ReproError(
            f"{listed} ranks contradict the bandwidths of {name}, which are those of {implied[0]} "
            f"to {implied[-1]} ranks; fix: give --ranks N"
        )
    if listed is not None and not run.groups:
        raise ReproError(
            f"ranks is {listed}, but the bandwidths of {name} are those of {implied[0]} ranks; "
            f"fix: give --ranks {implied[0]}"
        )
    found = "there is none" if listed is None else f"it has {listed}"
    skipped.append(
        f"the list of ranks: {found}; the bandwidths of {name} are those of {implied[0]} ranks, "
        "which is used"
    )
    return implied[0]


# Text.

_RANK = re.compile(r"#?\s*Rank\s+(\d{1,7})\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_TIMES = ("time", "cputime")
# Blanks in the place of the out-of-place columns if only in-place ones were measured.
_BLANK = re.compile(r"\S\s{20,}\S")
# Headings that people put above the rows of several runs, such as `==== 2-node ====`.
_HEADING = re.compile(r"[=\-#*]+\s*(\d{1,5})[- ]?nodes?\b[^\d]*$", re.IGNORECASE)
_FAILURE = re.compile(r"Test (?:CUDA |NCCL )?failure.*")
_TYPES = "|".join(WIDTHS)
_NUMBER = r"\d[\d.e+]*"
_VALUES = rf"{_NUMBER}[ \t]+{_NUMBER}[ \t]+{_NUMBER}[ \t]+(?:\S+)"
# Row of any version since 2.11, whose columns are known without their header.
ROW = re.compile(
    rf"[ \t]*\d+[ \t]+\d+[ \t]+(?:{_TYPES})[ \t]+[a-z]+[ \t]+-?\d+[ \t]+{_VALUES}"
    rf"(?:[ \t]+{_VALUES})?$"
)
HEADER = re.compile(r"(?:\#[ \t]*)?size[ \t]+count[ \t]+type\b")
_COLUMNS = ("size", "count", "type", "redop", "root")
_PLACE = ("time", "algbw", "busbw", "#wrong")
# GB/s beyond any link's, and threads x GPUs beyond any process's.
_FASTEST, _MOST_PER_PROCESS = 1e6, 1024


def _read_text(text: str, skipped: list[str]) -> list[_Run]:
    """Read the runs of a text; malformed rows are added to `skipped`."""
    runs = [_Run()]
    header: list[str] = []
    failed = False
    for number, padded in numbered_lines(text):
        line = padded.strip()
        program = _PROGRAM.search(line)
        rank = _RANK.match(line)
        if (failure := _FAILURE.search(line)) and not failed:
            failed = True
            skipped.append(f"line {number}: the test failed: {failure[0][:80]!r}")
        if line[:1].isdigit() and (header or ROW.match(line)):
            try:
                runs[-1].timings += _row(line, header)
            except ValueError as problem:
                skipped.append(f"line {number}: {problem}: {line[:60]!r}")
            continue
        if program and "concluded" in line:
            if runs[-1].timings and runs[-1].program is None:
                runs[-1].program = program[1]
            continue
        title = HEADER.match(line)
        heading = _HEADING.match(line)
        words = line.lstrip("# ").split()
        if runs[-1].timings and (program or rank or title or heading or words[:1] == ["nThread"]):
            runs.append(_Run())
            header, failed = [], False
        if program:
            runs[-1].program = program[1]
        elif rank:
            runs[-1].groups.setdefault(rank[2] or "0", []).append(int(rank[1]))
            runs[-1].hosts.add(rank[3])
        elif heading and int(heading[1]):
            runs[-1].nodes = int(heading[1])
        elif title:
            header = _columns(words)
    return runs


def _columns(words: Sequence[str]) -> list[str]:
    """Return a header's columns; a timestamp has two words: day and time."""
    named = [f"#{name}" if name == "wrong" else name for name in words if name != "#"]
    return [part for name in named for part in [name] * (1 + (name == "timestamp"))]


def _row(line: str, header: Sequence[str]) -> list[Timing]:
    """Read the one or two timings of a row, by the header's columns or by those of `ROW`."""
    words, columns = line.split(), list(header)
    usual = [*_COLUMNS, *_PLACE * ((len(words) - len(_COLUMNS)) // len(_PLACE))]
    # The header is missing or cut behind one of its columns.
    if ROW.match(line) and columns == usual[: len(columns)]:
        columns = usual
    if "redop" in columns and "root" not in columns and len(words) == len(columns) - 1:
        # The all-to-all of early versions leaves its operator blank.
        words.insert(columns.index("redop"), BLANK_OPERATOR)
    starts = [at for at, name in enumerate(columns) if name in _TIMES]
    in_place = [False, True][: len(starts)]
    if len(starts) == 2 and len(words) == len(columns) - (starts[1] - starts[0]):
        starts, in_place = starts[:1], [bool(_BLANK.search(line))]
    elif len(words) != len(columns):
        raise ValueError(f"{len(words)} columns where the header has {len(columns)}")
    if len(starts) not in (1, 2) or len(words) < starts[-1] + len(_PLACE):
        raise ValueError("the header is cut")
    label = dict(zip(columns, words, strict=False))
    return [
        _timing(label, place, words[at : at + 3], words[at + 3], columns[at + 3])
        for at, place in zip(starts, in_place, strict=True)
    ]


def _timing(
    label: Mapping[str, str], in_place: bool, values: Sequence[str], wrong: str, check: str
) -> Timing:
    # `error` is the largest difference from the correct result; `#wrong` counts wrong elements.
    if check == "#wrong" and wrong != "N/A" and float(wrong) > 0:
        raise ValueError(f"{wrong} wrong elements")
    time_us, algbw, busbw = (float(value) for value in values)
    if not (0 <= algbw < _FASTEST and 0 <= busbw < _FASTEST):
        raise ValueError(f"its bandwidths are {algbw:g} and {busbw:g} GB/s")
    return Timing(
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
    program = _PROGRAM.search(str((content.get("args") or [""])[0]))
    run.program = program[1] if program else None
    try:
        _list_ranks(run, content.get("config") or {})
    except (AttributeError, TypeError, ValueError) as problem:
        skipped.append(f"config: {problem}")
        run.groups.clear()
    for number, record in enumerate(content.get("results", [])):
        try:
            run.timings += _record(record)
        except (KeyError, TypeError, ValueError) as problem:
            skipped.append(f"results[{number}]: {problem}")
    return [run]


def _list_ranks(run: _Run, config: Mapping[str, Any]) -> None:
    """Add the ranks and hosts of a configuration, which lists one device per process."""
    per_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    if not 0 < per_process <= _MOST_PER_PROCESS:
        raise ValueError(f"{per_process} ranks per process")
    for device in config.get("devices", []):
        listed = run.groups.setdefault(str(device.get("group", 0)), [])
        listed += range(len(listed), len(listed) + per_process)
        run.hosts.update({str(device["hostname"])} if "hostname" in device else ())


def _record(record: Mapping[str, Any]) -> list[Timing]:
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
