"""Reader of MSCCL++'s tables: its Python benchmark of all-reduce, and mscclpp-test.

Formats are from python/mscclpp_benchmark/allreduce_bench.py (PrettyTable) and from
test/mscclpp-test/common.cc, which prints in-place columns first and no element type.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from repro.collectives.definitions import collective_name
from repro.errors import ReproError
from repro.logs.measurements import (
    Measurement,
    Reading,
    measured,
    numbered_lines,
    require_ranks,
)

SIGN = (
    r"(?m)^[^\w\n]*Size(?: \(\w+\))? *\| *Time \(us\) *\| *AlgBW"
    r"|^[^\w\n]*size[ \t]+count[ \t]+time[ \t]+algbw[ \t]+busbw\b"
)
_DTYPES = {"fp16": "half", "fp32": "float", "bf16": "bfloat16"}
_UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}
_CELL = re.compile(r"(\d{1,15}(?:\.\d+)?) ([KMGT]i)?B")
_TITLE = re.compile(r"\b(all_?reduce|all_?gather|all_?to_?all|send_?recv)_test_perf\b")
_RANK = re.compile(r"#\s+Rank\s+\d+\s+Pid\s+\d+\s+on\s+(\S+)")
_HEADER = re.compile(r"\W*size\s+count\s+time\s+algbw\s+busbw\b")


def read_mscclpp(text: str, collective: str | None, ranks: int | None) -> Reading:
    """Read a table: a measurement per row; only MSCCL++'s columns are read, not those of NCCL.

    Sizes of the Python benchmark have one decimal of a power of 1024: at most 5 percent of error.

    Parameters
    ----------
    text : str
        Content of the file.
    collective
        Used if the file does not name it; the Python benchmark runs all-reduce only.
    ranks
        Used if the file does not list them.

    Raises
    ------
    RanksMissing
        Neither the file nor the caller has the number of ranks.
    """
    rows: list[Measurement] = []
    skipped: list[str] = []
    hosts: list[str] = []
    name, columns = collective, 0
    dtype: str | None = None
    for number, line in numbered_lines(text):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        try:
            if title := _TITLE.search(line):
                name, hosts, columns = collective_name(title[1]), [], 0
            elif rank := _RANK.match(line):
                hosts.append(rank[1])
            elif _HEADER.match(line):
                columns = len(line.lstrip("# ").split())
            elif len(cells) > 2 and cells[0].startswith("Size"):
                dtype = _DTYPES.get(cells[0][6:-1])
            elif len(cells) > 2 and _CELL.fullmatch(cells[0]):
                rows.append(_cells(cells, dtype, require_ranks(ranks)))
            elif columns and line.strip()[:1].isdigit():
                rows += _places(line.split(), columns, name, ranks, hosts)
        except (ValueError, IndexError) as problem:
            skipped.append(f"line {number}: {problem}: {line.strip()[:60]!r}")
    return rows, skipped


def _cells(cells: Sequence[str], dtype: str | None, ranks: int) -> Measurement:
    size = _CELL.fullmatch(cells[0])
    if "FAIL" in cells[3:4]:
        raise ValueError("its result is wrong")
    if size is None:
        raise ValueError(f"its size is {cells[0]!r}")
    size_bytes = round(float(size[1]) * _UNITS[f"{size[2] or ''}B"])
    return measured("all_reduce", dtype, size_bytes, ranks, float(cells[1]))


def _places(
    words: Sequence[str], columns: int, name: str | None, ranks: int | None, hosts: Sequence[str]
) -> list[Measurement]:
    """Read a row of mscclpp-test: size, count, four columns in place, and four out of place.

    The last four are missing if the test ran only in place.
    """
    if name is None:
        raise ReproError("does not contain the name of its collective; fix: give --collective NAME")
    if len(words) not in (columns, columns - 4):
        raise ValueError(f"{len(words)} columns where the header has {columns}")
    n = require_ranks(len(hosts) or ranks)
    size, nodes = int(words[0]), len(set(hosts)) or None
    found = []
    for at, in_place in ((2, True), (6, False)):
        if at + 4 > len(words):
            break
        if words[at + 3] not in ("0", "N/A"):
            raise ValueError(f"{words[at + 3]} wrong elements")
        found.append(
            replace(measured(name, None, size, n, float(words[at]), nodes), in_place=in_place)
        )
    return found
