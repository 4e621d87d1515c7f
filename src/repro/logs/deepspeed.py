"""Reader of DeepSpeed's communication log: its tables and its lines of single operations.

Formats and definitions are from deepspeed/utils/comms_logging.py (`convert_size`, `calc_bw_log`,
`log_all`), deepspeed/comm/comm.py (`timed_op`, the operations' names) and deepspeed/comm/utils.py
(`get_msg_size_from_args`: the bytes of a rank's input tensor).
"""

import re
from collections.abc import Mapping

from repro.logs.inference import rank_counts, ranks_from_bandwidths
from repro.logs.measurements import (
    POINT_TO_POINT,
    Measurement,
    Reading,
    measured,
    numbered_lines,
    require_ranks,
)

_COLLECTIVES: Mapping[str, str] = {
    **dict.fromkeys(("all_reduce", "inference_all_reduce", "all_reduce_coalesced"), "all_reduce"),
    **dict.fromkeys(("all_gather", "all_gather_into_tensor", "all_gather_base"), "all_gather"),
    **dict.fromkeys(
        ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_base"), "reduce_scatter"
    ),
    **dict.fromkeys(("all_to_all", "all_to_all_single"), "all_to_all"),
    **{"broadcast": "broadcast", "reduce": "reduce"},
    **dict.fromkeys(("send", "recv", "isend", "irecv"), "send_recv"),
}
_UNITS = {f"{prefix}B": 1024**power for power, prefix in enumerate(("", *"KMGTPEZY"))}
_SIZE = r"(?P<value>\d{1,18}(?:\.\d+)?) ?(?P<unit>[KMGTPEZY]?B)"
_CALLER = r"(?: \| \[Caller Func: [^\]]*\])?"  # only with its setting `debug`

# Both tables with "Comm. Op" have seven columns. The second one, of stragglers, repeats the first
# one's operations and is not read.
TABLE = re.compile(r"Comm\. Op\s+Message Size\s+Count\s+Total ")
_TOTALS = re.compile(TABLE.pattern + r"Latency\(ms\)\s+Avg Latency\(ms\)")
_OPERATION = re.compile(rf"(?P<name>\w+){_CALLER}$")
_SIZED = re.compile(r"\s+\d\S* ?[KMGTPEZY]?B\b")
_ROW = re.compile(rf"\s+{_SIZE}\s+\d+\s+\S+\s+(?P<avg_ms>\S+)\s+(?P<tput>\S+)\s+(?P<busbw>\S+)$")
_DECIMAL = re.compile(r"\d{1,9}\.\d\d$")
_BEGIN = "comm op: "
LINE = re.compile(rf"{_BEGIN}.*\| time \(ms\): ")
_SINGLE = re.compile(
    rf"{_BEGIN}(?P<name>\S+){_CALLER} \| time \(ms\): (?P<ms>\S+) \| msg size: {_SIZE} \|"
)


def read_deepspeed(text: str, ranks: int | None) -> Reading:
    """Read a training's output: a measurement per line of a table, or per single operation.

    The printed size is one rank's input. For an all-gather it is multiplied by the ranks to get
    nccl-tests' size; the input of a reduce-scatter or all-to-all already has that size. It is not
    exact: it is rounded to two decimals in powers of 1024 (0.5 percent at 1 KB, 0.0005 percent at
    999 MB). The printed bandwidths are not used: DeepSpeed's `tput` counts an all-reduce twice and,
    in older versions, a reduce-scatter once per rank; its Gbps are 1e9 bit/s.

    The time includes the launch from Python and a synchronisation of the device before and after.
    A table's time is the mean without the lowest and highest tenth. It has two decimals of a
    millisecond, so short operations read 0 and are skipped. DeepSpeed accumulates its tables until
    they are reset, so a later table includes the operations of earlier ones. If a log has lines of
    single operations, its tables are not read, because they summarize the same operations.

    Parameters
    ----------
    text : str
        Content of the file.
    ranks
        Number of ranks of the collectives, which the logger does not print. Without it, a table's
        two bandwidths imply it. The logger does not distinguish process groups: log operations of
        smaller groups in a separate run.

    Raises
    ------
    RanksMissing
        The log has a collective, and `ranks` is None.
    """
    read = _read_lines if LINE.search(text) else _read_tables
    return read(text, ranks)


def _read_lines(text: str, ranks: int | None) -> Reading:
    rows: list[Measurement] = []
    skipped: list[str] = []
    for number, line in numbered_lines(text):
        begin = line.find(_BEGIN)
        if begin < 0:
            continue
        try:
            found = _SINGLE.match(line, begin)
            if not found:
                raise ValueError("not a complete line of an operation")
            rows.append(_row(found["name"], found, found["ms"], ranks))
        except ValueError as problem:
            skipped.append(f"line {number}: {problem}: {line[begin:][:80]!r}")
    return rows, skipped


def _read_tables(text: str, ranks: int | None) -> Reading:
    rows: list[Measurement] = []
    skipped: list[str] = []
    if ranks is None and (ranks := _implied_ranks(text)):
        skipped.append(f"the number of ranks: the bandwidths are those of {ranks}, which is used")
    inside, name = False, ""
    for number, line in numbered_lines(text):
        if TABLE.match(line):
            inside, name = bool(_TOTALS.match(line)), ""
        elif inside and (operation := _OPERATION.match(line)):
            name = operation["name"]
        elif inside and _SIZED.match(line):
            try:
                found = _ROW.match(line)
                if not found:
                    raise ValueError("not the seven columns of the table")
                rows.append(_row(name, found, found["avg_ms"], ranks))
            except ValueError as problem:
                skipped.append(f"line {number}: {problem}: {' '.join(line.split())!r}")
    return rows, skipped


def _implied_ranks(text: str) -> int | None:
    """Return the ranks that a table's bandwidths imply; None if several numbers match.

    `busbw` over `tput` is (n-1)/n, but 1 for messages between two ranks.
    """
    found = [row for _, line in numbered_lines(text) if (row := _ROW.match(line))]
    pairs = [(row["tput"], row["busbw"]) for row in found]
    numbers = [(float(a), float(b)) for a, b in pairs if _DECIMAL.match(a) and _DECIMAL.match(b)]
    bound = [(a, b) for a, b in numbers if b < a]
    if not bound:
        return None
    n = rank_counts()
    matching = ranks_from_bandwidths((n - 1) / n, *zip(*bound, strict=True))
    return matching[0] if len(matching) == 1 else None


def _row(name: str, size: re.Match[str], milliseconds: str, ranks: int | None) -> Measurement:
    collective = _COLLECTIVES.get(name)
    if collective is None:
        raise ValueError(f"operation {name!r} is not supported")
    n = POINT_TO_POINT if collective == "send_recv" else require_ranks(ranks)
    size_bytes = round(float(size["value"]) * _UNITS[size["unit"]])
    if collective == "all_gather":
        size_bytes *= n
    return measured(collective, None, size_bytes, n, float(milliseconds) * 1e3)
