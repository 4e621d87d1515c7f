"""Read a log of collectives, whichever tool wrote it."""

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
# `collective` is for nccl-tests alone: every other log names what it measured.
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
    """Measurements of one file of nccl-tests, OSU micro-benchmarks, DeepSpeed or Kineto.

    Parameters
    ----------
    path : Path
        What the tool printed or wrote, possibly packed by gzip. Its content tells the tool.
    collective, ranks : optional
        Used where the file does not say.

    Returns
    -------
    DataFrame
        A row per measurement, with the fields of `measurements.Measurement`; what a tool defines
        otherwise than nccl-tests is converted, as its reader says. `attrs["tool"]` is one of
        `TOOLS`, `attrs["skipped"]` lists what was not read, each with its place and why.

    Raises
    ------
    RanksMissing
        It does not say how many ranks there were.
    ReproError
        There is no such file, it is of no known tool or of several, it has no measurement, or it
        does not say which collective it measured.
    """
    if collective is not None:
        bus_factor(collective, 2)
    if ranks is not None and ranks < 1:
        raise ReproError(f"ranks is {ranks}; wanted is 1 or more")
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
    """A file's text, also of one packed by gzip; errors do not name it."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise ReproError("no such file") from None
    except IsADirectoryError:
        raise ReproError("is a folder; name one file in it") from None
    except OSError as error:
        raise ReproError(f"cannot be read ({error.strerror})") from None
    if content.startswith(b"\x1f\x8b"):
        content = _unpacked(content)
    return content.decode("utf-8", errors="replace")


def _unpacked(packed: bytes) -> bytes:
    """The content of a gzip file; of one that ends early, what can be unpacked."""
    parts = []
    while packed:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            parts.append(member.decompress(packed))
        except zlib.error as error:
            raise ReproError(f"cannot be unpacked ({error})") from None
        packed = member.unused_data
    return b"".join(parts)


def _tool(text: str) -> str:
    """The tool that wrote a text; a trace may hold any words, so that JSON has signs of its own."""
    if re.match(r"\s*\{", text):
        first = next((tool for tool, sign in _JSON_SIGNS.items() if sign.search(text)), None)
        found = [first] if first else []
    else:
        found = [tool for tool, sign in _TEXT_SIGNS.items() if sign.search(text)]
    if not found:
        raise ReproError(f"is no log of a known tool; known are {', '.join(TOOLS)}")
    if len(found) > 1:
        raise ReproError(f"has logs of {' and '.join(found)}; keep each in a file of its own")
    return found[0]
