"""Claims on a terminal: their selection, counts of all, rows of some, one in full."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import get_args

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repro.catalog.reading import choose
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.claims.contradictions import contradictions
from repro.claims.findings import SOURCES, Judgement, Verdict
from repro.claims.published import (
    Claim,
    documented_claims,
    observation_of,
    observations,
    read_sources,
)
from repro.claims.quantities import answered_by, experiment_tests
from repro.claims.tables import VERDICT_COLUMNS, frame, published_text, value_text

_COLOURS: dict[Verdict, str] = {
    "reproduced": "green",
    "same direction": "yellow",
    "not reproduced": "red",
    "not run": "dim",
    "input": "dim",
}
_MARKS: dict[Verdict, str] = {"reproduced": "✓", "same direction": "~", "not reproduced": "✗"}
_MORE = '\nmore: repro claims --all, --verdict "not reproduced", --experiment NAME, or C017'


def requested_claims(ids: Sequence[str], experiment: str | None) -> list[Claim]:
    """Return the claims with the given ids that the experiment answers.

    Without ids, return all; without an experiment, do not filter by it.

    Raises
    ------
    ReproError
        An id or the experiment is unknown; the message lists the known ones.
    """
    known = {claim.id: claim for claim in documented_claims()}
    claims = [choose("claim", one.upper(), known) for one in ids] or list(known.values())
    if experiment is None:
        return claims
    choose("experiment", experiment, {name: name for name in EXPERIMENTS})
    return [claim for claim in claims if answered_by(claim, {experiment})]


def check_verdict(verdict: str) -> None:
    """Check the name of a verdict.

    Raises
    ------
    ReproError
        The verdict is unknown; the message lists the known ones.
    """
    choose("verdict", verdict, {one: one for one in get_args(Verdict)})


def with_verdict(judgements: Sequence[Judgement], verdict: str) -> list[Judgement]:
    """Return the judgements that have the verdict on any source."""
    return [one for one in judgements if verdict in one.verdicts.values()]


def overview(judgements: Sequence[Judgement]) -> RenderableType:
    """Return counts of verdicts by observation, and reasons where some do not reproduce."""
    sources = {source: [one.findings[source].verdict for one in judgements] for source in SOURCES}
    shown = {
        name: verdicts for name, verdicts in sources.items() if not set(verdicts).isdisjoint(_MARKS)
    }
    marks = "".join(f"{mark:>4}" for mark in _MARKS.values())
    table = Table("\nobservation", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("\nclaims", justify="right")
    for name in shown:
        table.add_column(f"{name:>12}\n{marks}")
    for one in observations():
        rows = [number for number, j in enumerate(judgements) if j.id in one.claims]
        if rows:
            counts = [Counter(verdicts[row] for row in rows) for verdicts in shown.values()]
            table.add_row(one.name, str(len(rows)), *map(_counts, counts))
    return Group(
        table,
        *(
            Text(f"{name}: {_in_words(verdicts)}")
            for name, verdicts in sources.items()
            if name != "cluster" or name in shown
        ),
        *_not_run(judgements),
        *_why_not(judgements),
        Text(_MORE, "dim"),
    )


def rows(judgements: Sequence[Judgement]) -> RenderableType:
    """Return one row per claim: the published value, and each source's value with a mark."""
    claims = frame(judgements)
    shown = [source for source in SOURCES if source in claims]
    table = Table("id", "statement", "published", *shown, box=box.SIMPLE_HEAD, pad_edge=False)
    for claim, row in claims.iterrows():
        verdicts = {source: row[VERDICT_COLUMNS[source]] for source in shown}
        values = [
            Text(f"{_MARKS.get(verdict, ' ')} {row[source]}", _COLOURS[verdict])
            for source, verdict in verdicts.items()
        ]
        table.add_row(str(claim), Text(row["statement"]), row["published"], *values)
    legend = ", ".join(f"{mark} {verdict}" for verdict, mark in _MARKS.items())
    return Group(table, Text(legend, "dim"))


def card(judgement: Judgement) -> RenderableType:
    """Return one claim in full: each source's finding, and what is known about the claim."""
    values = Table.grid(padding=(0, 2))
    values.add_row("published", Text(published_text(judgement)))
    for source, found in judgement.findings.items():
        values.add_row(
            source,
            Text(value_text(found, judgement.unit)),
            Text(found.verdict, style=_COLOURS[found.verdict]),
            Text(found.reason, "dim"),
        )
    return Group(
        Text(f"{judgement.id}  {judgement.statement}", style="bold"),
        Text(f"{read_sources()[judgement.source]}, {judgement.section}", style="dim"),
        Padding(values, (0, 0, 0, 2)),
        *(Padding(Text(line), (0, 0, 0, 2)) for line in _about(judgement)),
        "",
    )


def _about(judgement: Judgement) -> Iterable[str]:
    """Yield lines about a claim: its repetitions, contradictions, reason, note and command."""
    tests = experiment_tests()
    test, why = tests.get(judgement.id), observation_of(judgement.id).why
    same = [id for id, other in tests.items() if other is test and id != judgement.id]
    if test is not None and same:
        yield f"the same quantity: {', '.join(same)}"
    for one in contradictions():
        if judgement.id in one.claims:
            yield (
                f"{one.quantity}: stated {one.stated:.3g}, implied {one.implied:.3g} {one.unit}"
                f" ({one.arithmetic}: {', '.join(one.claims)})"
            )
    if "not reproduced" in judgement.verdicts.values() and why:
        yield f"why not: {why}"
    if judgement.note:
        yield f"note: {judgement.note}"
    if test is not None:
        yield f"measured by: dvc repro measure@{test.experiment}"


def _counts(counts: Counter[Verdict]) -> Text:
    """Return the numbers of the verdicts that have a mark; nothing for zero."""
    return Text.assemble(
        *((f"{counts[verdict] or '':>4}", _COLOURS[verdict]) for verdict in _MARKS)
    )


def _in_words(verdicts: Iterable[Verdict]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).most_common())


def _not_run(judgements: Sequence[Judgement]) -> list[RenderableType]:
    found = [one.findings["testbed"] for one in judgements]
    reasons = Counter(one.reason for one in found if one.verdict == "not run").most_common()
    others = f", and {len(reasons) - 1} other reasons" if len(reasons) > 1 else ""
    return [Text(f"not run: {reasons[0][0]}{others}", "dim")] if reasons else []


def _why_not(judgements: Sequence[Judgement]) -> list[RenderableType]:
    """Return a line for each observation of which some claims do not reproduce."""
    missed = {one.id for one in with_verdict(judgements, "not reproduced")}
    lines: list[RenderableType] = [
        Text.assemble((one.name, "red"), f": {one.why or 'not known'}")
        for one in observations()
        if missed.intersection(one.claims)
    ]
    return [Text("\nwhat does not reproduce, and why", style="bold"), *lines] if missed else []
