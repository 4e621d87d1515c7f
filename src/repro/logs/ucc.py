"""Reader of ucc_perftest: times and bandwidths of UCC's collectives.

Formats are from tools/perf of UCC (ucc_pt_benchmark.cc, and `get_bw` of each collective, which is
nccl-tests' bus bandwidth).
"""

import re
from collections.abc import Sequence

from repro.collectives.definitions import bus_factor, collective_name
from repro.errors import ReproError
from repro.logs.inference import rank_counts
from repro.logs.measurements import Measurement, Reading, measured, numbered_lines, require_ranks

SIGN = r"(?m)^[^\w\n]*Collective:[ \t]+\w+[^\n]*\n(?:[^\n]*\n){1,40}?\s*Count\s+Size\s+Time, us"
_FIELD = re.compile(r"\s*(Collective|Datatype|Inplace):\s+(\w+)")
_DTYPES = {"float32": "float", "float64": "double", "float16": "half"}
_NUMBER = r"(\d{1,12}(?:\.\d{1,6})?)"
_THREE = rf"\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}"
_ROW = re.compile(rf"\s*(\d{{1,15}})\s+(\d{{1,15}}){_THREE}(?:{_THREE})?$")
# Groups of a row: its size, mean time and mean bandwidth.
_SIZE, _TIME, _RATE = 2, 3, 6
# Relative rounding error of a row's bandwidth.
_ROUNDING = 0.005


def read_ucc(text: str, ranks: int | None) -> Reading:
    """Read the output of ucc_perftest (with `-F`, all columns): a measurement per row.

    The printed size is a rank's part for sharded collectives, so the size by nccl-tests' definition
    follows from bandwidth, time and ranks. Without `ranks`, their number follows from the
    bandwidth if one number matches all rows.

    Raises
    ------
    RanksMissing
        Neither the caller nor the bandwidths tell the number of ranks.
    """
    skipped: list[str] = []
    found: list[tuple[int, re.Match[str]]] = []
    fields: dict[str, str] = {}
    for number, line in numbered_lines(text):
        if field := _FIELD.match(line):
            if field[1] == "Collective" and "Collective" in fields:
                skipped.append(f"line {number}: a second run; fix: use a separate file for it")
                break
            fields[field[1]] = field[2]
        elif row := _ROW.match(line):
            found.append((number, row))
        elif line.strip()[:1].isdigit():
            skipped.append(f"line {number}: not the columns of a row: {line.strip()[:60]!r}")
    try:
        name = collective_name(fields.get("Collective", ""))
    except ReproError as problem:
        return [], [str(problem), *skipped]
    dtype = _DTYPES.get(fields.get("Datatype", ""), fields.get("Datatype"))
    timed = [
        row for _, row in found if row[_RATE] and float(row[_RATE]) > 0 and float(row[_TIME]) > 0
    ]
    if ranks is None and timed:
        ranks = require_ranks(_implied_ranks(name, timed))
        skipped.append(f"the number of ranks: the bandwidths are those of {ranks}, which is used")
    rows: list[Measurement] = []
    for number, row in found:
        try:
            rows.append(_row(name, dtype, row, require_ranks(ranks)))
        except ValueError as problem:
            skipped.append(f"line {number}: {problem}: {row[0].strip()[:60]!r}")
    return rows, skipped


def _implied_ranks(name: str, rows: Sequence[re.Match[str]]) -> int | None:
    """Return the number of ranks that all rows' bandwidths match; None if several do."""
    n = rank_counts()
    factor = bus_factor(name, n)
    sharded = factor[1] < 1
    matching = n > 1
    for row in rows:
        size, time_us, printed = int(row[_SIZE]), float(row[_TIME]), float(row[_RATE])
        ratio = printed * 1e3 * time_us / size if size else 0.0
        # Rows with three digits or more are precise enough.
        error = _ROUNDING / printed + _ROUNDING / time_us
        if error > _ROUNDING or not size:
            continue
        near = abs(factor / ratio - 1) < error
        if sharded:
            near |= abs(n * factor / ratio - 1) < error
        matching &= near
    (found,) = matching.nonzero()
    return int(n[found[0]]) if len(found) == 1 else None


def _row(name: str, dtype: str | None, row: re.Match[str], ranks: int) -> Measurement:
    size, time_us = int(row[_SIZE]), float(row[_TIME])
    if row[_RATE] is None or float(row[_RATE]) <= 0:
        raise ValueError("its bandwidth is missing or 0; fix: run ucc_perftest with -F")
    sizes = [size, size * ranks] if float(bus_factor(name, 2)) < 1 else [size]
    for candidate in sizes:
        found = measured(name, dtype, candidate, ranks, time_us)
        if abs(found.busbw_GBps - float(row[_RATE])) <= _ROUNDING + 0.01 * found.busbw_GBps:
            return found
    raise ValueError(f"its bandwidth is not that of {ranks} ranks")
