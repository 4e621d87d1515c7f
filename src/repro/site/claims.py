"""The claims explorer: a table to filter, and every claim under an address of its own."""

import html
import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import itables.options
from itables import to_html_datatable
from itables.javascript import generate_init_offline_itables_html

from repro.claims.contradictions import Contradiction, contradictions
from repro.claims.experiments.quantities import TESTS
from repro.claims.judged import CLAIMS, read_judgements
from repro.claims.published import read_sources
from repro.claims.shown.table import frame
from repro.claims.studies.operators import OPERATORS
from repro.claims.studies.predictions import PREDICTIONS
from repro.claims.verdicts import Judgement, documented_claims, judge
from repro.results.store import read_evidence
from repro.site.dots import Dot, dot_plot
from repro.site.gallery import read_figures
from repro.site.pages import raw, table, write_page

_WORDS = (
    "Every claim of the documents, as published, as the performance model predicts it at "
    "full scale, and as it was measured. What a verdict means is in [claims and experiments]"
    "(docs/claims.md). The table filters the claims below it: by words, and by what the lists in "
    "the heads of its columns name."
)
_RENAMED = {
    "prediction": "predicted verdict",
    "verdict": "testbed verdict",
    "verdict there": "cluster verdict",
}
_FILTERED = ("document", "experiment", *_RENAMED.values())


def read_or_judge() -> list[Judgement]:
    """The kept verdicts; without any, what can be said of what is in `results/`."""
    return read_judgements() if CLAIMS.exists() else judge(documented_claims(), read_evidence())


def link(claim: str, title: str = "") -> str:
    """A link to a claim from a page at the top of the site."""
    words = f' title="{html.escape(title, quote=True)}"' if title else ""
    return f'<a href="claims.html#{claim}"{words}>{claim}</a>'


def write_claims(stage: Path) -> None:
    """Write `claims.md`."""
    judgements = read_or_judge()
    contradicted = {claim: one for one in contradictions() for claim in one.claims[:1]}
    figures: dict[str, list[str]] = {}
    for shown in read_figures():
        figures.setdefault(shown.experiment, []).append(shown.name)
    write_page(
        stage / "claims.md",
        "Claims",
        _WORDS,
        raw(f'<div id="explorer">{_table(judgements)}</div>'),
        raw('<div id="claims">'),
        *(
            _claim(one, contradicted.get(one.id), figures.get(_experiment(one.id), []))
            for one in judgements
        ),
        raw('</div><script src="_static/claims.js"></script>'),
    )


def _table(judgements: list[Judgement]) -> str:
    """All claims in one table, with its script in the page."""
    rows = frame(judgements).drop(columns="note").reset_index().rename(columns=_RENAMED)
    rows.insert(1, "document", [one.source for one in judgements])
    rows.insert(2, "experiment", [_experiment(one.id) for one in judgements])
    rows["id"] = [link(claim) for claim in rows["id"]]
    rows["statement"] = [html.escape(text) for text in rows["statement"]]
    filters = [number for number, name in enumerate(rows.columns) if name in _FILTERED]
    shown = to_html_datatable(
        rows,
        connected=False,
        table_id="claims-table",
        showIndex=False,
        allow_html=True,
        maxBytes=0,
        paging=False,
        classes="display compact",
        columnControl=["order"],
        columnDefs=[{"targets": filters, "columnControl": ["order", ["searchList"]]}],
        ordering={"indicators": False, "handler": False},
        language={"search": "Search claims:"},
    )
    return generate_init_offline_itables_html(itables.options.dt_bundle) + shown


def _claim(one: Judgement, contradiction: Contradiction | None, figures: Sequence[str]) -> str:
    """A claim's section; its target becomes its address (`repro.site.sphinx`)."""
    stated = "holds" if one.published is None else f"{one.published:g} {one.unit}"
    found = [
        ("predicted", one.predicted_verdict, one.predicted_reason),
        ("testbed", one.verdict, one.reason),
        ("cluster", one.cluster_verdict, one.cluster_reason),
    ]
    if one.cluster_verdict == "not run":
        found.pop()
    rows = [
        ("published", stated, "", ""),
        *((source, _value(one, source), *judged) for source, *judged in found),
    ]
    blocks = [
        f"(claim-{one.id.lower()})=",
        f"## {one.id}: {one.statement}",
        f"{read_sources()[one.source]}, {one.section}. Quantity: *{_formula(one.id)}*",
        raw(
            dot_plot(_dots(one), one.unit if one.published is not None else "share of resamples")
            + "".join(_thumbnail(name) for name in figures[:1])
        ),
        table(("source", "value", "verdict", "reason"), rows),
    ]
    if one.note:
        blocks.append(f"Reading it closely: {one.note}")
    if contradiction:
        blocks.append(
            f"It contradicts {', '.join(map(link, contradiction.claims[1:])) or 'itself'}: stated "
            f"{contradiction.stated:.4g}, implied {contradiction.implied:.4g} {contradiction.unit} "
            f"({contradiction.arithmetic})."
        )
    if figures:
        blocks.append(
            f"Figures of {_experiment(one.id).replace('_', ' ')}: "
            + ", ".join(f"[{name}](figures/{name}.md)" for name in figures)
        )
    return "\n\n".join(blocks)


def _thumbnail(name: str) -> str:
    return (
        f'<a href="figures/{name}.html"><img class="thumbnail" loading="lazy" alt="{name}" '
        f'src="_static/figures/{name}.svg"></a>'
    )


def _value(one: Judgement, source: str) -> str:
    columns = frame([one])
    return str(columns[source].iloc[0]) if source in columns else "-"


def _dots(one: Judgement) -> list[Dot]:
    published = 1.0 if one.published is None else one.published
    return [
        Dot("published", published, None),
        *(
            Dot(source, value, interval)
            for source, value, interval in (
                ("predicted", one.predicted, one.predicted_interval),
                ("testbed", one.testbed, one.interval),
                ("cluster", one.cluster, one.cluster_interval),
            )
            if value is not None
        ),
    ]


def _experiment(claim: str) -> str:
    return TESTS[claim].experiment if claim in TESTS else "predicted only"


def _formula(claim: str) -> str:
    """What is computed for a claim, in symbols and words."""
    if claim in TESTS:
        return TESTS[claim].formula
    if claim not in PREDICTIONS and claim not in OPERATORS:
        return "nothing here computes it"
    compute = PREDICTIONS[claim].compute if claim in PREDICTIONS else OPERATORS[claim]
    function = compute.func if isinstance(compute, partial) else compute
    return (inspect.getdoc(function) or function.__name__.strip("_").replace("_", " ")).split("\n")[
        0
    ]
