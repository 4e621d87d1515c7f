"""Expected and judged bus bandwidths as text, and sizes as people write them."""

import re
from typing import cast

import pandas as pd

from repro.errors import ReproError

# 1 KiB to 4 GiB, each four times the one before.
STANDARD_SIZES = tuple(4**power for power in range(5, 17))

# As nccl-tests takes them, K, M and G are powers of 1024; so are KiB, MiB and GiB. KB, MB and GB
# are powers of 1000.
_UNITS: dict[str, int] = {
    "": 1,
    "B": 1,
    **{unit: 1024**power for power, unit in enumerate(("K", "M", "G"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("KIB", "MIB", "GIB"), start=1)},
    **{unit: 1000**power for power, unit in enumerate(("KB", "MB", "GB"), start=1)},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
# What is the same for all rows of a block stands above it.
_HEAD = ["collective", "ranks", "nodes", "ceiling_GBps", "basis"]
_ROWS = ["size", "in_place", "busbw_GBps", "low_GBps", "typical_GBps", "high_GBps"]
_WORDS = ["verdict", "regime", "limit", "remark"]


def parse_size(text: str) -> float:
    """Bytes: `64MiB`, `1G`, `100 MB`, `4096`.

    Raises
    ------
    ReproError
        It is no size.
    """
    found = _SIZE.fullmatch(text)
    if not found or found[2].upper() not in _UNITS or float(found[1]) == 0:
        raise ReproError(f"size {text!r}: take a number of bytes, KiB, MiB or GiB, such as 64MiB")
    return float(found[1]) * _UNITS[found[2].upper()]


def table(rows: pd.DataFrame) -> str:
    """What `repro.predict.network.expected` returns as text: a block per collective and ranks."""
    blocks = []
    for key, block in rows.groupby(_HEAD, sort=False):
        collective, ranks, nodes, ceiling, basis = cast(tuple[str, int, int, float, str], key)
        head = (
            f"{collective}, {ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}: bus bandwidth "
            f"predicted from {basis}, with its 90 % interval; a ring's nominal ceiling is "
            f"{ceiling:.4g} GB/s"
        )
        shown = block.assign(size=[_written(size) for size in block.size_bytes])
        shown = shown[[name for name in (*_ROWS, *_WORDS) if name in shown]]
        text = shown.to_string(index=False, float_format="{:.3g}".format)
        blocks.append(f"{head}\n{text}")
    return "\n\n".join(blocks)


def _written(size_bytes: float) -> str:
    """A size in the largest binary unit that it is a whole number of."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes % _UNITS[unit.upper()] == 0:
            return f"{size_bytes / _UNITS[unit.upper()]:.0f} {unit}"
    return f"{size_bytes:.0f} B"
