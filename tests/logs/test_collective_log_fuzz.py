"""Readers of logs of collectives on mutated lines: no crash, no hang, no silence.

REPRO_FUZZED_LINES sets the lines per reader (default 100,000).
"""

import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutations import mutated

from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.logs import reading
from repro.logs.measurements import Reading, numbered_lines

_LINES = int(os.environ.get("REPRO_FUZZED_LINES", "100000"))
# Lines of the mutated files, in turn: of a snippet, and of a whole log.
_BATCHES = (30, 1000)
_SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
_TEXTS = [path.read_text(encoding="utf-8") for path in _SAMPLES]
_SEEDS = [line for text in _TEXTS for line in text.splitlines() if len(line) < 1000]
# Pieces that the readers' regular expressions look for, and that break numbers.
_PIECES = (
    *("|", ":", "=", ",", ".", "-", " ", "  ", "\t", "\r", "\x1b[31m", "\x00", "\ufeff", "é", "#"),
    *("[", "]", "{", "}", '"', "...", "0", "9", "e", "E+308", "nan", "inf", "-1", "1e400", "null"),
    *("9" * 40, "N/A", "time", "algbw", "busbw", "#wrong", "Rank  0", "nThread", "all_reduce_perf"),
    *("B", "KiB", "float", "sum", "time:", '"n_ranks": 0', '"entries": [', "comm op: ", "osu_bw"),
)


def _mutated(seed: int, own: list[str]) -> Iterator[str]:
    """Yield lines of a tool, of which half are changed, among a few lines of other tools."""
    chosen = random.Random(seed)
    while True:
        line = chosen.choice(own if chosen.random() < 0.9 else _SEEDS)
        for _ in range(chosen.randrange(4) if chosen.random() < 0.5 else 0):
            line = mutated(line, chosen, _PIECES, own)
        yield line


def _own_lines(tool: str) -> list[str]:
    signs = {**reading._TEXT_SIGNS, **reading._JSON_SIGNS}
    own = [text for text in _TEXTS if signs[tool].search(text)]
    return [line[:2000] for text in own for line in text.splitlines()]


def _check(read: Reading, lines: int) -> None:
    rows, skipped = read
    # A line has an in-place and an out-of-place measurement at most.
    assert len(rows) <= 2 * lines
    for row in rows:
        assert row.size_bytes > 0 and row.ranks > 1, row
        assert row.nodes is None or row.nodes > 0, row
        assert row.time_us > 0 and math.isfinite(row.time_us), row
        assert math.isfinite(row.algbw_GBps) and math.isfinite(row.busbw_GBps), row
        assert bus_factor(row.collective, row.ranks) > 0
    assert all("\n" not in one for one in skipped)


@pytest.mark.parametrize("tool", reading.TOOLS)
def test_mutated_lines_are_read_named_or_refused_in_one_line(tool: str) -> None:
    own = _own_lines(tool)
    source, done = _mutated(1, own), 0
    reads = 0
    while done < _LINES:
        count = _BATCHES[done % 2]
        text = "\n".join(next(source) for _ in range(count))
        done += count + 1
        try:
            found = reading._READERS[tool](text, "all_reduce", 8)
        except ReproError as error:
            assert "\n" not in str(error)
        else:
            _check(found, count)
            reads += bool(found[0])
    # NCCL RAS has no times, and three tools write one object, which a change breaks.
    assert reads or tool in ("NCCL RAS", "Kineto", "flight recorder"), "nothing was ever read"


@pytest.mark.parametrize("path", _SAMPLES, ids=lambda path: path.name)
def test_mutated_files_are_read_or_refused_in_one_line(path: Path, tmp_path: Path) -> None:
    chosen = random.Random(3)
    text, log = path.read_text(encoding="utf-8"), tmp_path / "log"
    for _ in range(max(1, _LINES // 2000)):
        at = chosen.randrange(len(text))
        changed = text[:at] + chosen.choice(_PIECES) + text[at + chosen.randrange(9) :]
        log.write_text(changed[: chosen.choice((len(changed), chosen.randrange(len(changed))))])
        try:
            assert len(reading.read_log(log, ranks=8))
        except ReproError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("piece", [*_PIECES, "a", "0: ", "[0] ", "> ", "1 ", "a1|", "2025-05-01 "])
def test_long_lines_of_one_piece_are_read_in_time(piece: str, tmp_path: Path) -> None:
    """Read lines of the greatest length; a cubic pattern never ends here."""
    line = (piece * 19_000)[:19_000]
    assert sum(1 for _ in numbered_lines(line)) >= 1
    log = tmp_path / "log"
    log.write_text(f"{line}\n# OSU MPI Latency Test\n{line}\n", encoding="utf-8")
    with pytest.raises(ReproError):
        reading.read_log(log, ranks=8)
