"""Page of claims: a table with filters, and a section with its own address for every claim."""

import html
from collections.abc import Sequence
from pathlib import Path

import itables.options
from itables import to_html_datatable
from itables.javascript import generate_init_offline_itables_html

from repro.claims.contradictions import Contradiction, contradictions
from repro.claims.findings import CLAIMS, Judgement, read_judgements
from repro.claims.published import documented_claims, read_sources
from repro.claims.quantities import experiment_tests
from repro.claims.tables import VERDICT_COLUMNS, frame
from repro.claims.verdicts import judge
from repro.site.dots import Dot, dot_plot
from repro.site.gallery import SavedFigure, read_figures
from repro.site.pages import raw, table, write_page
from repro.studies.datasets import read_evidence

_INTRODUCTION = (
    "Every claim of the papers as published, as the performance model predicts it at full scale, "
    "and as measured. [Claims and verdicts](docs/reference/claims.md) defines the verdicts. "
    "The search field and the lists in the column heads filter the table and the claims below it."
)
_RENAMED = {column: f"{source} verdict" for source, column in VERDICT_COLUMNS.items()}
_FILTERED = ("document", "experiment", *_RENAMED.values())


def read_or_judge() -> list[Judgement]:
    """Read the saved verdicts; without any, judge the claims with the results that exist."""
    return read_judgements() if CLAIMS.exists() else judge(documented_claims(), read_evidence())


def link(claim: str, title: str = "") -> str:
    """Return a link to a claim from a page at the top of the site."""
    attribute = f' title="{html.escape(title, quote=True)}"' if title else ""
    return f'<a href="claims.html#{claim}"{attribute}>{claim}</a>'


def write_claims(pages: Path) -> None:
    """Write `claims.md`."""
    judgements = read_or_judge()
    contradicted = {claim: one for one in contradictions() for claim in one.claims[:1]}
    formulas = {claim.id: claim.fact("formula") for claim in documented_claims()}
    figures: dict[str, list[SavedFigure]] = {}
    for figure in read_figures():
        figures.setdefault(figure.experiment, []).append(figure)
    write_page(
        pages / "claims.md",
        "Claims",
        _INTRODUCTION,
        raw(f'<div id="explorer">{_table(judgements)}</div>'),
        raw('<div id="claims">'),
        *(
            _section(
                one,
                formulas.get(one.id) or "not computed",
                contradicted.get(one.id),
                figures.get(_experiment(one.id), []),
            )
            for one in judgements
        ),
        raw('</div><script src="_static/claims.js"></script>'),
    )


def _table(judgements: list[Judgement]) -> str:
    """Return all claims in one table, with its script."""
    rows = frame(judgements).drop(columns="note").reset_index().rename(columns=_RENAMED)
    rows.insert(1, "document", [one.source for one in judgements])
    rows.insert(2, "experiment", [_experiment(one.id) for one in judgements])
    rows["id"] = [link(claim) for claim in rows["id"]]
    rows["statement"] = [html.escape(text) for text in rows["statement"]]
    filters = [number for number, name in enumerate(rows.columns) if name in _FILTERED]
    body = to_html_datatable(
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
    return generate_init_offline_itables_html(itables.options.dt_bundle) + body


def _section(
    one: Judgement,
    formula: str,
    contradiction: Contradiction | None,
    figures: Sequence[SavedFigure],
) -> str:
    """Return a claim's section; its target becomes its address (`repro.site.sphinx`)."""
    stated = "holds" if one.published is None else f"{one.published:g} {one.unit}"
    rows = [
        ("published", stated, "", ""),
        *(
            (source, _value(one, source), found.verdict, found.reason)
            for source, found in one.findings.items()
            if (source, found.verdict) != ("cluster", "not run")
        ),
    ]
    blocks = [
        f"(claim-{one.id.lower()})=",
        f"## {one.id}: {one.statement}",
        f"{read_sources()[one.source]}, {one.section}. Quantity: *{formula}*",
        raw(
            dot_plot(_dots(one), one.unit if one.published is not None else "share of resamples")
            + "".join(map(_thumbnail, figures[:1]))
        ),
        table(("source", "value", "verdict", "reason"), rows),
    ]
    if one.note:
        blocks.append(f"Note: {one.note}")
    if contradiction:
        blocks.append(
            f"It contradicts {', '.join(map(link, contradiction.claims[1:])) or 'itself'}: stated "
            f"{contradiction.stated:.4g}, implied {contradiction.implied:.4g} {contradiction.unit} "
            f"({contradiction.arithmetic})."
        )
    if figures:
        blocks.append(
            f"Figures of {_experiment(one.id).replace('_', ' ')}: "
            + ", ".join(f"[{figure.title}](figures/{figure.name}.md)" for figure in figures)
        )
    return "\n\n".join(blocks)


def _thumbnail(one: SavedFigure) -> str:
    return (
        f'<a href="figures/{one.name}.html"><img class="thumbnail" loading="lazy" '
        f'alt="{html.escape(one.title)}" src="_static/figures/{one.name}.svg"></a>'
    )


def _value(one: Judgement, source: str) -> str:
    columns = frame([one])
    return str(columns[source].iloc[0]) if source in columns else "-"


def _dots(one: Judgement) -> list[Dot]:
    published = 1.0 if one.published is None else one.published
    return [
        Dot("published", published, None),
        *(
            Dot(source, found.value, found.interval)
            for source, found in one.findings.items()
            if found.value is not None
        ),
    ]


def _experiment(claim: str) -> str:
    test = experiment_tests().get(claim)
    return test.experiment if test else "predicted only"
