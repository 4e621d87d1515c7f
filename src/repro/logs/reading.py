"""Reader of logs of collectives, for all supported tools."""

import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from repro.collectives.definitions import collective_name
from repro.errors import ReproError, of_file
from repro.logs import (
    deepspeed,
    flight_recorder,
    imb,
    mscclpp,
    nccl_inspector,
    nccl_ras,
    nccl_tests,
    osu,
    ucc,
)
from repro.logs.kineto import read_kineto
from repro.logs.measurements import Reading, as_frame, numbered_lines

_Reader = Callable[[str, str | None, int | None], Reading]
# Readers ignore `collective` and `ranks` if all logs of their tool contain them.
_READERS: Mapping[str, _Reader] = {
    "nccl-tests": nccl_tests.read_nccl_tests,
    "OSU micro-benchmarks": lambda text, _, ranks: osu.read_osu(text, ranks),
    "DeepSpeed": lambda text, _, ranks: deepspeed.read_deepspeed(text, ranks),
    "Kineto": lambda text, _, ranks: read_kineto(text, ranks),
    "NCCL Inspector": lambda text, *_: nccl_inspector.read_nccl_inspector(text),
    "NCCL RAS": lambda text, *_: nccl_ras.read_nccl_ras(text),
    "flight recorder": lambda text, _, ranks: flight_recorder.read_flight_recorder(text, ranks),
    "Intel MPI Benchmarks": lambda text, *_: imb.read_imb(text),
    "ucc_perftest": lambda text, _, ranks: ucc.read_ucc(text, ranks),
    "MSCCL++": mscclpp.read_mscclpp,
}
TOOLS = tuple(_READERS)
_JSON_SIGNS = {
    "Kineto": re.compile(r'"traceEvents"\s*:'),
    "NCCL Inspector": re.compile(nccl_inspector.SIGN),
    "NCCL RAS": re.compile(nccl_ras.SIGN),
    "flight recorder": re.compile(flight_recorder.SIGN),
    "nccl-tests": re.compile(r'"(?:config|nccl_version|results)"\s*:'),
}
_TEXT_SIGNS = {
    "nccl-tests": re.compile(
        rf"(?:#[ \t]+|^ ?)nThread\b|^[ \t]*{nccl_tests.HEADER.pattern}|^{nccl_tests.ROW.pattern}",
        re.M,
    ),
    "OSU micro-benchmarks": re.compile(rf"^(?:\S*{osu.TITLE.pattern}|# Size {{2,}}\S)", re.M),
    "DeepSpeed": re.compile(rf"{deepspeed.TABLE.pattern}|{deepspeed.LINE.pattern}"),
    "NCCL Inspector": re.compile(nccl_inspector.SIGN),
    "NCCL RAS": re.compile(nccl_ras.SIGN),
    "Intel MPI Benchmarks": re.compile(imb.SIGN),
    "ucc_perftest": re.compile(ucc.SIGN),
    "MSCCL++": re.compile(mscclpp.SIGN),
}
# Lines that are likely to belong to a table or a record of a collective.
_LIKELY = re.compile(
    r"busbw|algbw|GB/s|MB/s|usec|\(us\)|latency|all_?reduce|all_?gather|all_?to_?all|reduce_?scatter",
    re.I,
)
_NUMBERS = re.compile(r"(?:\b\d[\d.]*\b\s+){3,}")
LARGEST_BYTES = 1 << 30
"""Limit on a file and on what it decompresses to: a few kilobytes of gzip may be gigabytes."""

# First two bytes of a pickle of protocol 2 or later.
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))


def read_log(path: Path, collective: str | None = None, ranks: int | None = None) -> pd.DataFrame:
    """Read a log of collectives, of any tool in `TOOLS`.

    Parameters
    ----------
    path : Path
        Output of the tool, which may be compressed by gzip. The tool is recognized by the content.
    collective, ranks : optional
        Used if the file does not contain them.

    Returns
    -------
    DataFrame
        A row per measurement, with the fields of `measurements.Measurement`. Readers convert sizes
        and bandwidths to nccl-tests' definitions. `attrs["tool"]` is one of `TOOLS`;
        `attrs["skipped"]` lists skipped parts with their place and the reason; `attrs["lines"]` is
        the number of lines.

    Raises
    ------
    RanksMissing
        The number of ranks is missing.
    ReproError
        The file does not exist, belongs to no or several tools, or has no measurement; or the name
        of the collective is missing.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.txt"
    >>> lines = "# OSU MPI Allreduce Latency Test", "# Size  Avg Latency(us)", "1048576  240.13"
    >>> _ = path.write_text(chr(10).join(lines))
    >>> read_log(path, ranks=4)[["collective", "size_bytes", "time_us"]].values.tolist()
    [['all_reduce', 1048576, 240.13]]
    """
    if collective is not None:
        collective = collective_name(collective)
    if ranks is not None and ranks < 1:
        raise ReproError(f"ranks is {ranks}; fix: pass 1 or more")
    with of_file(path, "give the whole output of a run of several ranks"):
        text = read_text(path)
        tool = _tool(text)
        rows, skipped = _READERS[tool](text, collective, ranks)
        if not rows:
            reason = skipped[0] if skipped else f"{tool} printed none"
            raise ReproError(f"no measurement; {reason}")
    frame = as_frame(rows, skipped)
    frame.attrs["tool"] = tool
    frame.attrs["lines"] = len(text.splitlines())
    return frame


def check_stated(measured: pd.DataFrame, log: object, **given: object) -> None:
    """Refuse values that no row of a log has, because the log states others.

    Raises
    ------
    ReproError
        A value of `given`, by column, is not in the rows.
    """
    for name, value in given.items():
        stated = measured[name].unique()
        if value is not None and value not in stated:
            listed = ", ".join(map(str, stated))
            raise ReproError(f"{log}: states {name} {listed}, not {value}; fix: omit --{name}")


def read_text(path: Path) -> str:
    """Return the text of a file, which may be compressed by gzip.

    Raises
    ------
    ReproError
        The file cannot be read; the message does not contain the path.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise ReproError("no such file; fix: correct the path") from None
    except IsADirectoryError:
        raise ReproError("is a folder; fix: name one file in it") from None
    except OSError as error:
        raise ReproError(f"cannot be read ({error.strerror}); fix: make it readable") from None
    if content.startswith(b"\x1f\x8b"):
        content = _decompress(content)
    if len(content) > LARGEST_BYTES:
        raise ReproError(f"has more than {LARGEST_BYTES} bytes; fix: cut it to fewer iterations")
    if content.startswith(_PICKLES):
        raise ReproError(
            "is a pickle, which runs code when it is loaded, so it is not read; fix: dump the "
            "flight recorder as JSON (torch._C._distributed_c10d._dump_nccl_trace_json)"
        )
    # Redirected output of PowerShell is UTF-16.
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return content.decode(encoding, errors="replace")


def _decompress(compressed: bytes) -> bytes:
    """Decompress a gzip file; a truncated one as far as possible, a large one up to the limit."""
    content = b""
    while compressed and len(content) <= LARGEST_BYTES:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            content += member.decompress(compressed, LARGEST_BYTES + 1 - len(content))
        except zlib.error as error:
            raise ReproError(f"cannot be decompressed ({error})") from None
        compressed = member.unused_data
    return content


def _tool(text: str) -> str:
    """Return the tool that wrote a text; JSON has its own signs: traces may contain any text."""
    if re.match(r"\s*\{", text):
        first = next((tool for tool, sign in _JSON_SIGNS.items() if sign.search(text)), None)
        tools = [first] if first else []
    else:
        plain = "\n".join(line for _, line in numbered_lines(text) if line)
        tools = [tool for tool, sign in _TEXT_SIGNS.items() if sign.search(plain)]
    if not tools:
        raise ReproError(_nothing(text))
    if len(tools) > 1:
        raise ReproError(f"has logs of {' and '.join(tools)}; fix: use a separate file for each")
    return tools[0]


def _nothing(text: str) -> str:
    """Describe a text of which no line is recognized, with the nearest line."""
    lines = [(number, line.strip()) for number, line in numbered_lines(text) if line.strip()]
    tools = ", ".join(TOOLS)
    if not lines:
        return f"is not a log of a supported tool; choose from: {tools}; the file is empty"
    signs = (_NUMBERS, _LIKELY, re.compile(""))
    ranked = ([one for one in lines if sign.search(one[1])] for sign in signs)
    number, line = next(found[0] for found in ranked if found)
    wanted = "; rows of nccl-tests have size, count, type, redop, root, time, algbw, busbw, #wrong"
    hint = wanted if _NUMBERS.search(line) or _LIKELY.search(line) else ""
    return (
        f"is not a log of a supported tool; choose from: {tools}; 0 of {len(lines)} lines are a "
        f"measurement, the nearest is line {number}: {line[:80]!r}{hint}"
    )
