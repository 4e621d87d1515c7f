"""The first page: the question, the answer, how sure it is, and where to go from there."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.catalog.studies.experiments import EXPERIMENTS
from repro.claims.shown.observations import Observation, observation_of
from repro.claims.verdicts import Judgement
from repro.experiments.this_machine import caveats
from repro.figures.compared import SOURCES
from repro.site.claims import link, read_or_judge
from repro.site.measured import datasets, where
from repro.site.pages import figure_image, raw, toctree, write_page

_QUESTION = (
    "What does the network cost when a language model is trained on several machines? Two papers "
    "and a report measured it on clusters, over RDMA, IPoIB and TCP/IP. Here the same training "
    "runs on emulated nodes of one machine, a performance model predicts it at full scale, and "
    "every published claim gets a verdict."
)
_CONTENTS = {
    "Claims": "claims",
    "Figures": "figures/index",
    "Notebooks": "notebooks/index",
    "What if": "what-if",
    "Documents": "documents",
    "Reference": "reference/index",
    "Provenance": "provenance",
}


@dataclass(frozen=True)
class Answer:
    """A sentence with places for the values of claims, in their order."""

    sentence: str
    claims: tuple[str, ...]


_ANSWERS = (
    Answer(
        "With data parallelism on 8 GPUs, an iteration takes {} as long over IPoIB as over RDMA, "
        "and {} as long over TCP/IP",
        ("C017", "C018"),
    ),
    Answer(
        "Exchanging gradients takes {} of an iteration over RDMA, {} over IPoIB and {} over TCP/IP "
        "(strong scaling, mean of four models)",
        ("C003", "C004", "C005"),
    ),
    Answer(
        "With model parallelism an iteration takes {} as long over IPoIB as over RDMA, and {} as "
        "long over TCP/IP",
        ("C034", "C035"),
    ),
)


def write_home(stage: Path) -> None:
    """Write `index.md`, and the list of the documents."""
    judgements = read_or_judge()
    known = caveats({name: datasets()[name] for name in EXPERIMENTS})
    named = {judgement.id: judgement for judgement in judgements}
    documents = [path.stem for path in sorted(stage.glob("[A-Z]*.md"), reverse=True)]
    documents += sorted(f"docs/{path.stem}" for path in (stage / "docs").glob("*.md"))
    write_page(stage / "documents.md", "Documents", toctree(documents, "maxdepth: 1"))
    write_page(
        stage / "index.md",
        "What does the network cost?",
        raw('<div class="first-screen"><div>'),
        _QUESTION,
        *(f"{number}. {_say(one, named)}" for number, one in enumerate(_ANSWERS, start=1)),
        raw("</div><div>"),
        *_picture(),
        raw("</div></div>"),
        "## How sure it is",
        "\n".join(f"- {line}" for line in [*_counts(judgements), *where(), *known]),
        *_not_measured(judgements),
        "## What did not reproduce",
        _not_reproduced(judgements),
        toctree([f"{title} <{page}>" for title, page in _CONTENTS.items()], "hidden: "),
    )


def _say(answer: Answer, named: Mapping[str, Judgement]) -> str:
    """An answer from what is nearest to the papers' clusters, beside the published one."""
    chosen = [named[claim] for claim in answer.claims]
    for source in reversed(SOURCES):
        values = [found(one, source) for one in chosen]
        if all(values):
            how = "predicted" if source == "predicted" else f"measured on the {source}"
            published = ", ".join(f"{one.published:g}{_unit(one)}" for one in chosen)
            return (
                f"{answer.sentence.format(*(f'**{value}**' for value in values))} "
                f"({how}; published: {published}; {', '.join(link(one.id) for one in chosen)})."
            )
    return f"{answer.sentence.format(*['?'] * len(chosen))}: neither predicted nor measured."


def found(one: Judgement, source: str) -> str:
    """What a source has for a claimed number, with its interval; empty if nothing."""
    value, interval = {
        "predicted": (one.predicted, one.predicted_interval),
        "testbed": (one.testbed, one.interval),
        "cluster": (one.cluster, one.cluster_interval),
    }[source]
    if value is None or interval is None:
        return ""
    low, high = interval
    return f"{value:.3g}{_unit(one)} [{low:.3g}, {high:.3g}]"


def _unit(one: Judgement) -> str:
    return {"x": " times"}.get(one.unit, f" {one.unit}")


def _picture() -> list[str]:
    caption = (
        "The headline claims: what was published, what the model predicts and what was measured, "
        "with 95 % intervals, over the published value. "
        "[Zoom in, and its data](figures/headlines.md)."
    )
    return figure_image(
        "headlines", "Headline claims as published, predicted and measured", caption
    )


def _counts(judgements: Sequence[Judgement]) -> list[str]:
    """How many claims came to what, by source."""
    lines = []
    for source, verdicts in (
        ("testbed", [one.verdict for one in judgements]),
        ("cluster", [one.cluster_verdict for one in judgements]),
        ("prediction", [one.predicted_verdict for one in judgements]),
    ):
        counts = Counter(verdicts)
        if counts["not run"] + counts["input"] < len(judgements):
            words = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
            lines.append(f"{source} of {len(judgements)} [claims](claims.md): {words}")
    return lines


def _not_measured(judgements: Sequence[Judgement]) -> list[str]:
    """Why the testbed has no verdict on some, folded away."""
    why = Counter(one.reason for one in judgements if one.verdict == "not run")
    if not why:
        return []
    reasons = "".join(f"<li>{count}: {html.escape(one)}</li>" for one, count in why.items())
    summary = f"<summary>{sum(why.values())} claims were not judged on the testbed</summary>"
    return [raw(f"<details>{summary}<ul>{reasons}</ul></details>")]


def _not_reproduced(judgements: Sequence[Judgement]) -> str:
    """By observation, with why, from what was measured, or from the prediction where nothing
    was."""
    measured = any(one.testbed is not None for one in judgements)
    failed: dict[Observation, list[str]] = {}
    for one in judgements:
        if (one.verdict if measured else one.predicted_verdict) == "not reproduced":
            failed.setdefault(observation_of(one.id), []).append(link(one.id, one.statement))
    source = "On the testbed" if measured else "In the prediction, as no measurement can answer"
    if not failed:
        return f"{source}: nothing."
    lines = [
        f"- {about.name} ({', '.join(claims)}): {about.why or 'not known why'}"
        for about, claims in failed.items()
    ]
    return "\n".join([f"{source} ([more](docs/limitations.md)):", "", *lines])
