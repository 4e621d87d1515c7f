"""Reader of logs of collectives, for all supported tools."""

import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.logs import deepspeed, osu
from repro.logs.kineto import read_kineto
from repro.logs.measurements import Reading, as_frame
from repro.logs.nccl_tests import read_nccl_tests

_Reader = Callable[[str, str | None, int | None], Reading]
# Only nccl-tests' reader uses `collective`: all other logs contain the collective's name.
_READERS: Mapping[str, _Reader] = {
    "nccl-tests": read_nccl_tests,
    "OSU micro-benchmarks": lambda text, _, ranks: osu.read_osu(text, ranks),
    "DeepSpeed": lambda text, _, ranks: deepspeed.read_deepspeed(text, ranks),
    "Kineto": lambda text, _, ranks: read_kineto(text, ranks),
}
TOOLS = tuple(_READERS)
_JSON_SIGNS = {
    "Kineto": re.compile(r'"traceEvents"\s*:'),
    "nccl-tests": re.compile(r'"(?:config|nccl_version|results)"\s*:'),
}
_TEXT_SIGNS = {
    "nccl-tests": re.compile(r"#[ \t]+(?:nThread\b|size[ \t]+count[ \t]+type\b)"),
    "OSU micro-benchmarks": re.compile(rf"^\S*{osu.TITLE.pattern}", re.M),
    "DeepSpeed": re.compile(rf"{deepspeed.TABLE.pattern}|{deepspeed.LINE.pattern}"),
}


def read_log(path: Path, collective: str | None = None, ranks: int | None = None) -> pd.DataFrame:
    """Read a file of nccl-tests, OSU micro-benchmarks, DeepSpeed or Kineto.

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
        `attrs["skipped"]` lists skipped parts with their place and the reason.

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
        bus_factor(collective, 2)
    if ranks is not None and ranks < 1:
        raise ReproError(f"ranks is {ranks}; fix: pass 1 or more")
    try:
        text = read_text(path)
        tool = _tool(text)
        rows, skipped = _READERS[tool](text, collective, ranks)
        if not rows:
            reason = skipped[0] if skipped else f"{tool} printed none"
            raise ReproError(f"no measurement; {reason}")
    except ReproError as error:
        raise type(error)(f"{path}: {error}") from None
    frame = as_frame(rows, skipped)
    frame.attrs["tool"] = tool
    return frame


def read_text(path: Path) -> str:
    """Return the text of a file, which may be compressed by gzip.

    Raises
    ------
    ReproError
        The file cannot be read; the message does not contain the path.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise ReproError("no such file") from None
    except IsADirectoryError:
        raise ReproError("is a folder; fix: name one file in it") from None
    except OSError as error:
        raise ReproError(f"cannot be read ({error.strerror})") from None
    if content.startswith(b"\x1f\x8b"):
        content = _decompress(content)
    # Redirected output of PowerShell is UTF-16.
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    return content.decode(encoding, errors="replace")


def _decompress(compressed: bytes) -> bytes:
    """Decompress a gzip file; a truncated one as far as possible."""
    parts = []
    while compressed:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            parts.append(member.decompress(compressed))
        except zlib.error as error:
            raise ReproError(f"cannot be decompressed ({error})") from None
        compressed = member.unused_data
    return b"".join(parts)


def _tool(text: str) -> str:
    """Return the tool that wrote a text; JSON has its own signs: traces may contain any text."""
    if re.match(r"\s*\{", text):
        first = next((tool for tool, sign in _JSON_SIGNS.items() if sign.search(text)), None)
        tools = [first] if first else []
    else:
        tools = [tool for tool, sign in _TEXT_SIGNS.items() if sign.search(text)]
    if not tools:
        raise ReproError(f"is not a log of a supported tool; choose from: {', '.join(TOOLS)}")
    if len(tools) > 1:
        raise ReproError(f"has logs of {' and '.join(tools)}; fix: use a separate file for each")
    return tools[0]
