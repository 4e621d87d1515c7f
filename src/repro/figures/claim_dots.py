"""Claims on one axis: values of each source as multiples of the published value."""

from collections.abc import Sequence

import holoviews as hv
import pandas as pd

from repro.claims.findings import SOURCES, Judgement
from repro.claims.published import read_claims
from repro.claims.quantities import experiment_tests
from repro.figures.experiments.every import Figure, figure
from repro.figures.palette import GREEN, PURPLE, SKY_BLUE
from repro.figures.panels import option, options, published_marks

# Headline claims in short.
_SHORT = {
    "C001": "forward compute, strong-scaling efficiency",
    "C002": "backward compute, strong-scaling efficiency",
    "C003": "AllReduce's share over RDMA",
    "C004": "AllReduce's share over IPoIB",
    "C005": "AllReduce's share over TCP/IP",
    "C017": "iteration, IPoIB / RDMA",
    "C018": "iteration, TCP/IP / RDMA",
    "C072": "AllReduce, IPoIB / RDMA",
    "C073": "AllReduce, TCP/IP / RDMA",
    "C061": "NIC's mean rate, GPT-2-Large",
}
_RANGE = {"range_lo": ", lowest", "range_hi": ", highest"}
_LONGEST = 58
# Colours that no protocol has, and marks that differ in grey.
_COLOURS = {"predicted": SKY_BLUE, "testbed": GREEN, "cluster": PURPLE}
_MARKS = {
    "predicted": {"matplotlib": "o", "bokeh": "circle"},
    "testbed": {"matplotlib": "s", "bokeh": "square"},
    "cluster": {"matplotlib": "^", "bokeh": "triangle"},
}
_APART, _ROW_HEIGHT, _MARGIN, _WIDTH = 0.2, 34, 90, 760


def compared_figures(judgements: Sequence[Judgement]) -> list[Figure]:
    """Return figures of the headline claims and of each experiment's numbers.

    Claims that repeat another are left out.
    """
    named = {judgement.id: judgement for judgement in judgements}
    experiments: dict[str, dict[int, Judgement]] = {}
    for judgement in judgements:
        if judgement.published is not None and (test := experiment_tests().get(judgement.id)):
            experiments.setdefault(test.experiment, {}).setdefault(id(test), judgement)
    chosen = {"headlines": [named[claim] for claim in _SHORT if claim in named]} | {
        f"{name}_claims": list(tests.values()) for name, tests in experiments.items()
    }
    return [
        figure(name, name.removesuffix("_claims"), compared, rows)
        for name, own in chosen.items()
        if not (rows := claim_rows(own)).empty
    ]


def claim_rows(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """Return the rows that `compared` draws: one per claim and source with a value."""
    comparators = {claim.id: claim.comparator for claim in read_claims()}
    rows = []
    for one in judgements:
        statement = _SHORT.get(one.id) or one.statement + _RANGE.get(comparators[one.id], "")
        if len(statement) > _LONGEST:
            statement = f"{statement[:_LONGEST]}..."
        for source, found in one.findings.items():
            if found.value is not None and found.interval is not None:
                rows.append(
                    {
                        "claim": f"{statement} ({one.id}): {one.published:g} {one.unit}",
                        "source": source,
                        "published": one.published,
                        "value": found.value,
                        "low": found.interval[0],
                        "high": found.interval[1],
                        "unit": one.unit,
                    }
                )
    return pd.DataFrame(rows)


def compared(rows: pd.DataFrame) -> hv.Overlay:
    """Draw values over the published one with intervals, a row per claim, a mark per source.

    Parameters
    ----------
    rows : DataFrame
        A row per claim and source: `claim` (its label), `source` (predicted, testbed, cluster),
        `published`, `value`, `low` and `high`, `unit`. Claims are drawn in their order.
    """
    labels = list(dict.fromkeys(rows["claim"]))[::-1]
    ratios = rows.assign(
        ratio=rows["value"] / rows["published"],
        low=rows["low"] / rows["published"],
        high=rows["high"] / rows["published"],
        place=[labels.index(claim) for claim in rows["claim"]],
        found=[
            f"{value:.3g} [{low:.3g}, {high:.3g}] {unit}"
            for value, low, high, unit in rows[["value", "low", "high", "unit"]].values
        ],
    )
    drawn: list[hv.Element] = [published_marks([(1.0, place) for place in range(len(labels))])]
    present = [source for source in SOURCES if (ratios["source"] == source).any()]
    for number, source in enumerate(present):
        own = ratios[ratios["source"] == source]
        own = own.assign(place=own["place"] + _APART * ((len(present) - 1) / 2 - number))
        colour = _COLOURS[source]
        drawn += [
            hv.Segments(own.assign(end=own["place"]), ["low", "place", "high", "end"]).opts(
                color=colour, **option(2, matplotlib="linewidth", bokeh="line_width")
            ),
            hv.Scatter(own, "ratio", ["place", "claim", "found"], label=source).opts(
                color=colour,
                **options(
                    matplotlib={"s": 45, "marker": _MARKS[source]["matplotlib"]},
                    bokeh={
                        "size": 9,
                        "marker": _MARKS[source]["bokeh"],
                        "tools": ["hover"],
                        "hover_tooltips": [("", "@claim"), (source, "@found")],
                    },
                ),
            ),
        ]
    return hv.Overlay(drawn).opts(
        xlabel="value over the published one",
        ylabel="",
        xlim=(0, 1.05 * max(1.5, ratios["high"].max())),
        ylim=(-0.6, len(labels) - 0.4),
        yticks=list(enumerate(labels)),
        legend_position="top",
        **options(
            matplotlib={"fig_size": 170, "aspect": 16 / (4 + len(labels)), "legend_cols": 4},
            bokeh={"width": _WIDTH, "height": _MARGIN + _ROW_HEIGHT * len(labels)},
        ),
    )
