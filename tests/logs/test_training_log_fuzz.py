"""Readers of training logs on mutated lines: no crash, no hang, no unbounded memory.

REPRO_FUZZED_LINES sets the lines per reader (default 100,000).
"""

import math
import os
import random
import re
import sys
import types
from collections.abc import Iterator

import pytest
from mutations import mutated
from training_logs import EXPECTED, VINTAGES, text_of

from repro.errors import ReproError
from repro.logs.training import reading, runs, steps
from repro.logs.training.reading import read_training_log
from repro.logs.training.steps import lines_of

_LINES = int(os.environ.get("REPRO_FUZZED_LINES", "100000"))
_BATCH = 2_000
_READERS = {name: read for name, read in reading._READERS.items()}
_SEEDS = [
    line
    for text in (*map(text_of, EXPECTED), *(text for _, text, _, _ in VINTAGES.values()))
    for line in text.splitlines()
    if any(character.isdigit() for character in line)
]
# Pieces that regular expressions of readers look for, and that break numbers.
_PIECES = (
    *("|", ":", "=", ",", ".", "-", " ", "  ", "\t", "\r", "\x1b[31m", "\x00", "\ufeff", "é", "%"),
    *("[", "]", "(", ")", "{", "}", '"', "'", "...", "0", "9", "e", "E+308", "nan", "inf", "-1"),
    *("1e400", "9" * 40, "ms", "s/it", "it/s", "iteration 5/ 9 |", "step: 3  loss:", "time (ms) |"),
    *("elapsed time per iteration (ms):", ":::MLLOG {", "across ranks (ms):", "tok/s", "K", "T"),
)


def _mutated(seed: int, count: int) -> Iterator[str]:
    chosen = random.Random(seed)
    for _ in range(count):
        line = chosen.choice(_SEEDS)
        for _ in range(chosen.randrange(4)):
            line = mutated(line, chosen, _PIECES, _SEEDS)
        yield line


@pytest.mark.parametrize("tool", _READERS)
def test_mutated_lines_give_finite_numbers_and_no_more_steps_than_lines(tool: str) -> None:
    source = _mutated(1, _LINES)
    for _ in range(_LINES // _BATCH):
        lines = lines_of("\n".join(next(source) for _ in range(_BATCH)))
        log = _READERS[tool](lines)
        # A line has at most one step per `iteration 1/2 |` of two ranks.
        assert len(log.steps) <= sum(max(line.text.count("iteration"), 1) for line in lines)
        for step in log.steps:
            for name, value in vars(step).items():
                assert value is None or math.isfinite(value), (name, step)
            assert step.time_s is None or step.time_s > 0
        assert all(0 < value < 1e40 for value in log.stated.values())
        assert all(0 < timer.time_s < 1e30 for timer in log.timers)


def test_mutated_files_are_read_or_refused_in_one_line() -> None:
    source = _mutated(2, _LINES // 10)
    for size in [3, 30, 300] * (_LINES // 10 // 333):
        try:
            log = read_training_log("\n".join(next(source) for _ in range(size)))
        except ReproError as error:
            assert "\n" not in str(error)
            continue
        assert sum(len(run.steps) for run in log.runs) > 0
        for run in log.runs:
            times = run.steps.time_s.dropna()
            assert ((times > 0) & (times < math.inf)).all()


def _patterns() -> Iterator[tuple[str, "re.Pattern[str]"]]:
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("repro.logs.training.") and isinstance(module, types.ModuleType)
    ]
    assert {reading, runs, steps} <= set(modules)
    for module in modules:
        for name, value in vars(module).items():
            for pattern in value.values() if isinstance(value, dict) else [value]:
                if isinstance(pattern, re.Pattern):
                    yield f"{module.__name__}.{name}", pattern


@pytest.mark.parametrize(
    "pattern", [pytest.param(pattern, id=name) for name, pattern in _patterns()]
)
def test_no_pattern_backtracks_without_bound(pattern: "re.Pattern[str]") -> None:
    """Search lines of the greatest length that repeat one piece, or one piece and its start.

    A pattern of quadratic time takes at most some 10 million steps; a cubic one never ends here.
    """
    longest = steps._LONGEST_LINE
    # Literal beginnings of the pattern itself are the worst to repeat.
    literal = re.sub(r"\\(.)|[\^$*+?{}()|\[\]]", r"\1", pattern.pattern)[:30]
    pieces = (
        *_PIECES,
        literal,
        f"{literal} 1",
        "a",
        "1,",
        "1.",
        "a:",
        "a |",
        "| 1",
        " a ....",
        "1/",
    )
    for piece in pieces:
        for start in ("", literal):
            line = (start + piece * longest)[:longest]
            assert len(line) == longest
            pattern.search(line)
