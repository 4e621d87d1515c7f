"""Renew numbers, tables and command outputs in the documents from their sources.

Run `python docs/renew.py` after a new reference run or a change of the performance model, and
`python docs/renew.py --check` to list what no longer agrees with its source (a test does).

Three marks connect a page to its source:

- a number before `<!-- NAME -->`, with NAME from `values()`: `2.7<!-- C017 testbed -->`;
- a table between `<!-- table NAME -->` and `<!-- end -->`, with NAME from `TABLES`;
- a `console` block, whose first line is `$ COMMAND` and whose other lines are the first lines that
  the command prints.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import unified_diff
from functools import cache
from pathlib import Path

from peers import error_table, lost_table

from repro.claims.findings import Judgement, Source
from repro.claims.published import documented_claims, observations
from repro.claims.quantities import experiment_tests
from repro.claims.reference import judge_reference, keep_verdicts
from repro.claims.verdicts import judge
from repro.figures.claim_dots import compared_figures
from repro.figures.export import save_figure
from repro.paths import PUBLISHED, ROOT
from repro.predict.calibration.validation import validate
from repro.results.reference import REFERENCE

PAGES = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "notebooks/README.md")
    for path in ROOT.glob(pattern)
)
HEADLINES = ROOT / "docs" / "images" / "headlines.svg"
_VALUE = re.compile(r"(?P<text>\d[\d.,]*)<!-- (?P<name>[^>]+?) -->")
_TABLE = re.compile(r"(<!-- table (?P<name>\S+) -->\n)(?P<text>.*?)(<!-- end -->)", re.S)
_CONSOLE = re.compile(r"(```console\n\$ (?P<command>[^\n]+)\n)(?P<text>.*?)(```)", re.S)
_WIDTH = "100"
# Exit status of a command whose answer is that a job does not fit in memory.
_DOES_NOT_FIT = 3
_SOURCES: tuple[Source, ...] = ("predicted", "testbed")
_VERDICTS = ("reproduced", "same direction", "not reproduced")


@cache
def _judgements() -> tuple[Judgement, ...]:
    """Verdicts on the prediction, and on the reference run as `testbed`."""
    return tuple(judge_reference(documented_claims()))


@cache
def values() -> Mapping[str, float]:
    """Numbers by name: claims, verdict counts, minutes of stages of the reference run."""
    found: dict[str, float] = {"claims": len(documented_claims())}
    for one in _judgements():
        pairs = {"published": one.published}
        pairs |= {source: one.findings[source].value for source in _SOURCES}
        found |= {f"{one.id} {name}": value for name, value in pairs.items() if value is not None}
    for source in _SOURCES:
        counts = Counter(one.verdicts[source] for one in _judgements())
        found |= {f"{source} {verdict}": count for verdict, count in counts.items()}
    stages = _stage_times_s()
    found |= {f"minutes {stage}": seconds / 60 for stage, seconds in stages.items()}
    return found | {"minutes everything": sum(stages.values()) / 60}


def _stage_times_s() -> dict[str, float]:
    times: dict[str, dict[str, float]] = json.loads((REFERENCE / "stage_times.json").read_text())
    return times["default"]


def _markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _observations() -> str:
    """Verdict counts by observation, with the claims' ids and the experiments that answer them."""
    judged = {one.id: one for one in _judgements()}
    rows = []
    for one in observations():
        own = [judged[claim] for claim in one.claims if claim in judged]
        counts = [
            " / ".join(str(sum(j.verdicts[source] == v for j in own)) for v in _VERDICTS)
            for source in _SOURCES
        ]
        tests = experiment_tests()
        experiments = {tests[claim].experiment: None for claim in one.claims if claim in tests}
        rows.append((one.name, _ranges(one.claims), *counts, ", ".join(experiments)))
    return _markdown(("observation", "claims", "predicted", "testbed", "experiments"), rows)


def _ranges(claims: tuple[str, ...]) -> str:
    """Ids with neighbours joined: `C001, C044-C047`."""
    runs: list[list[int]] = []
    for number in (int(claim[1:]) for claim in claims):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"C{run[0]:03d}" + (f"-C{run[-1]:03d}" if len(run) > 1 else "") for run in runs
    )


def _reasons() -> str:
    """Observations with claims that do not reproduce, and the known reason."""
    missed = {one.id for one in _judgements() if "not reproduced" in one.verdicts.values()}
    rows = [
        (one.name, str(len(missed.intersection(one.claims))), one.why or "not known")
        for one in observations()
        if missed.intersection(one.claims)
    ]
    return _markdown(("observation", "not reproduced", "known reason"), rows)


def _stages() -> str:
    """Minutes of the measuring stages in the reference run."""
    rows = [
        (stage, f"`dvc repro {stage}`", f"{seconds / 60:.1f}")
        for stage, seconds in _stage_times_s().items()
        if seconds >= 10
    ]
    return _markdown(("stage", "command", "minutes"), rows)


def _validation(name: str, *by: str) -> Callable[[], str]:
    """Errors of the performance model on a file of `data/published/`, per set or other columns."""

    def table() -> str:
        rows = [
            (
                str(score.Index),
                str(score.n),
                f"{score.mape_pct:.1f}",
                f"{score.median_pct:.1f}",
                f"{score.bias_pct:+.1f}",
                f"{score.coverage_90_pct:.0f}",
                f"{score.baseline_mape_pct:.1f}",
            )
            for score in validate(PUBLISHED / name, by).itertuples()
        ]
        head = (
            ", ".join(by) or "set",
            "rows",
            "MAPE, %",
            "median, %",
            "bias, %",
            "in 90 % interval, %",
        )
        return _markdown((*head, "best constant, %"), rows)

    return table


def _peers(table: Callable[[], list[tuple[str, ...]]]) -> str:
    """Errors of other performance models, from the answers that docs/peers.py keeps."""
    head, *rows = table()
    return _markdown(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "observations": _observations,
    "reasons": _reasons,
    "stages": _stages,
    "megatron-2021": _validation("training_a100_vtrain.csv"),
    "megatron-tables": _validation("training_a100_tables.csv"),
    "modern": _validation("training_modern.csv"),
    "mlperf": _validation("training_mlperf.csv", "gpu", "dtype"),
    "collectives": _validation("collectives_nccl.csv"),
    "big-red-200": _validation("nccl_bigred200.csv"),
    "serving": _validation("inference_a100_fastertransformer.csv"),
    "peers": lambda: _peers(error_table),
    "peers-better": lambda: _peers(lost_table),
    "engines": _validation("serving_engines.csv"),
}


@cache
def _output(command: str) -> list[str]:
    """Lines that a command prints, without trailing spaces and empty first lines."""
    environment = os.environ | {
        "COLUMNS": _WIDTH,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    result = subprocess.run(
        command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if result.returncode != _DOES_NOT_FIT:
        result.check_returncode()
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    return lines[next(number for number, line in enumerate(lines) if line) :]


def _value(found: re.Match[str]) -> str:
    """Return the number of the source, with as many decimals as the page shows."""
    decimals = len(found["text"].partition(".")[2])
    return f"{values()[found['name']]:,.{decimals}f}<!-- {found['name']} -->"


def _table(found: re.Match[str]) -> str:
    return f"{found[1]}{TABLES[found['name']]()}{found[4]}"


def _console(found: re.Match[str]) -> str:
    shown = len(found["text"].splitlines())
    lines = _output(found["command"])[:shown]
    return f"{found[1]}" + "".join(f"{line}\n" for line in lines) + found[4]


def renewed(text: str) -> str:
    """Return a page's text with every mark renewed.

    Raises
    ------
    KeyError
        A mark names no value or table.
    """
    for pattern, renew in ((_VALUE, _value), (_TABLE, _table), (_CONSOLE, _console)):
        text = pattern.sub(renew, text)
    return text


def differences() -> list[str]:
    """Return the lines of all pages that do not agree with their sources, as a unified diff."""
    lines: list[str] = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        both = text.splitlines(), renewed(text).splitlines()
        lines += unified_diff(*both, str(path.relative_to(ROOT)), "its sources", n=0, lineterm="")
    return lines


def _renew_predictions() -> None:
    """Predict all claims again, beside the kept findings of the reference run."""
    now = judge(documented_claims(), {})
    keep_verdicts(
        replace(kept, findings={**kept.findings, "predicted": new.findings["predicted"]})
        for kept, new in zip(_judgements(), now, strict=True)
    )
    _judgements.cache_clear()


def main() -> int:
    """Renew all pages and the figure of the README, or list differences with `--check`."""
    if "--check" in sys.argv:
        found = differences()
        print("\n".join(found) or "all numbers agree with their sources")
        return bool(found)
    _renew_predictions()
    for path in PAGES:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
    headlines = compared_figures(_judgements())[0]
    for written in save_figure(headlines.draw, HEADLINES):
        if written != HEADLINES:
            written.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
