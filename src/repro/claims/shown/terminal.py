"""Claims on a terminal: a screenful of all, rows of some, one in full."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from repro.claims.contradictions import contradictions
from repro.claims.experiments.quantities import TESTS
from repro.claims.findings import Judgement, Verdict
from repro.claims.published import read_sources
from repro.claims.shown.observations import OBSERVATIONS, observation_of
from repro.claims.shown.table import found, frame, published_text

_COLOURS: dict[Verdict, str] = {
    "reproduced": "green",
    "same direction": "yellow",
    "not reproduced": "red",
    "not run": "dim",
    "input": "dim",
}
_MARKS: dict[Verdict, str] = {"reproduced": "✓", "same direction": "~", "not reproduced": "✗"}
_MORE = '\nmore: repro claims --all, --verdict "not reproduced", --experiment NAME, or C017'


def overview(judgements: Sequence[Judgement]) -> RenderableType:
    """Counts of verdicts by observation, and what does not reproduce and why: a screenful."""
    sources = _sources(judgements)
    shown = {
        name: verdicts for name, verdicts in sources.items() if not set(verdicts).isdisjoint(_MARKS)
    }
    marks = "".join(f"{mark:>4}" for mark in _MARKS.values())
    table = Table("\nobservation", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("\nclaims", justify="right")
    for name in shown:
        table.add_column(f"{name:>12}\n{marks}")
    for one in OBSERVATIONS:
        rows = [number for number, j in enumerate(judgements) if j.id in one.claims]
        if rows:
            counts = [Counter(verdicts[row] for row in rows) for verdicts in shown.values()]
            table.add_row(one.name, str(len(rows)), *map(_counted, counts))
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
    """A row per claim: published value, and what each source has with its verdict's mark."""
    claims = frame(judgements)
    sources = {"predicted": "prediction", "testbed": "verdict", "cluster": "verdict there"}
    shown = [name for name in sources if name in claims]
    table = Table("id", "statement", "published", *shown, box=box.SIMPLE_HEAD, pad_edge=False)
    for claim, row in claims.iterrows():
        values = [
            Text(f"{_MARKS.get(row[sources[name]], ' ')} {row[name]}", _COLOURS[row[sources[name]]])
            for name in shown
        ]
        table.add_row(str(claim), Text(row["statement"]), row["published"], *values)
    legend = ", ".join(f"{mark} {verdict}" for verdict, mark in _MARKS.items())
    return Group(table, Text(legend, "dim"))


def card(judgement: Judgement) -> RenderableType:
    """One claim in full: what each source has, and what is known about it."""
    j, about = judgement, observation_of(judgement.id)
    values = Table.grid(padding=(0, 2))
    values.add_row("published", Text(published_text(j)))
    for name, value, interval, verdict, reason in (
        ("predicted", j.predicted, j.predicted_interval, j.predicted_verdict, j.predicted_reason),
        ("testbed", j.testbed, j.interval, j.verdict, j.reason),
        ("cluster", j.cluster, j.cluster_interval, j.cluster_verdict, j.cluster_reason),
    ):
        values.add_row(
            name, Text(found(value, interval, j.unit)), _coloured(verdict), Text(reason, "dim")
        )
    lines: list[str] = []
    test = TESTS.get(j.id)
    if test is not None:
        same = [other for other, its in TESTS.items() if its is test and other != j.id]
        lines += [f"the same quantity: {', '.join(same)}"] if same else []
    lines += [
        f"{one.quantity}: stated {one.stated:.3g}, implied {one.implied:.3g} {one.unit}"
        f" ({one.arithmetic}: {', '.join(one.claims)})"
        for one in contradictions()
        if j.id in one.claims
    ]
    if "not reproduced" in (j.predicted_verdict, j.verdict, j.cluster_verdict) and about.why:
        lines.append(f"why not: {about.why}")
    lines += [f"note: {j.note}"] if j.note else []
    if test is not None:
        lines.append(f"measured by: dvc repro measure@{test.experiment}")
    return Group(
        Text(f"{j.id}  {j.statement}", style="bold"),
        Text(f"{read_sources()[j.source]}, {j.section}", style="dim"),
        Padding(values, (0, 0, 0, 2)),
        *(Padding(Text(line), (0, 0, 0, 2)) for line in lines),
        "",
    )


def _sources(judgements: Sequence[Judgement]) -> dict[str, list[Verdict]]:
    return {
        "predicted": [j.predicted_verdict for j in judgements],
        "testbed": [j.verdict for j in judgements],
        "cluster": [j.cluster_verdict for j in judgements],
    }


def _counted(counts: Counter[Verdict]) -> Text:
    """How many there are of each verdict that says something; nothing for none."""
    return Text.assemble(
        *((f"{counts[verdict] or '':>4}", _COLOURS[verdict]) for verdict in _MARKS)
    )


def _in_words(verdicts: Iterable[Verdict]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).most_common())


def _not_run(judgements: Sequence[Judgement]) -> list[RenderableType]:
    reasons = Counter(j.reason for j in judgements if j.verdict == "not run").most_common()
    others = f", and {len(reasons) - 1} other reasons" if len(reasons) > 1 else ""
    return [Text(f"not run: {reasons[0][0]}{others}", "dim")] if reasons else []


def _why_not(judgements: Sequence[Judgement]) -> list[RenderableType]:
    """A line for each observation of which something does not reproduce."""
    missed = {
        j.id
        for j in judgements
        if "not reproduced" in (j.predicted_verdict, j.verdict, j.cluster_verdict)
    }
    lines: list[RenderableType] = [
        Text.assemble((one.name, "red"), f": {one.why or 'not known'}")
        for one in OBSERVATIONS
        if missed.intersection(one.claims)
    ]
    return [Text("\nwhat does not reproduce, and why", style="bold"), *lines] if missed else []


def _coloured(verdict: Verdict) -> Text:
    return Text(verdict, style=_COLOURS[verdict])
