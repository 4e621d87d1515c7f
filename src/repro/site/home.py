"""First page: purpose, findings, questions that users can ask and limits; list of documents."""

import html
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.catalog.studies.experiments import EXPERIMENTS
from repro.claims.findings import SOURCES, Judgement, Source
from repro.claims.published import Observation, observation_of
from repro.experiments.this_machine import caveats
from repro.paths import ROOT
from repro.site.claims import link, read_or_judge
from repro.site.measured import datasets, where
from repro.site.pages import figure_image, raw, toctree, write_page

_PURPOSE = (
    "`repro` measures and predicts what the network costs in distributed LLM training. It repeats "
    "experiments that two papers and a report ran on GPU clusters over RDMA, IPoIB and TCP/IP. "
    "One Linux machine trains small models on emulated nodes, a performance model predicts "
    "full-size runs, and every published claim gets a verdict."
)
_QUESTIONS = (
    "Does a published claim hold, and if not, why? [Claims](claims.md); `make repro` measures "
    "them on your machine.",
    "Does your training job fit, what should it reach, and why is it slower? `repro estimate "
    "config.json --gpu h100 --gpus 64 --tp 8`.",
    "How long would a training job take on another cluster? `repro what-if llama3.1-70b --gpus "
    "1024`, and examples in [What if](what-if.md).",
    "Which batch, context and model fit into a GPU's memory? `repro fits llama3.1-70b --gpu "
    "h100-sxm-80gb --gpus 64`.",
    "Is a collective as fast as it should be? `repro busbw CLUSTER LOG` checks a log of "
    "nccl-tests, OSU, DeepSpeed or PyTorch.",
    "What do my GPUs measure? `papermill notebooks/weak_scaling.ipynb out.ipynb -p source cluster`",
)
_CONTENTS = {
    "Claims": "claims",
    "Figures": "figures/index",
    "Notebooks": "notebooks/README",
    "What if": "what-if",
    "Documents": "documents",
    "Provenance": "provenance",
}
# Suffixes of pages, and relative addresses in Markdown links.
_PAGE = (".md", ".ipynb")
_LINK = re.compile(r"\]\(([^):#]+)")
# Titles of the folders in `docs/`, in reading order; other folders follow under their own names.
_GROUPS = {
    ".": "Tutorial",
    "how_to": "How-to guides",
    "reference": "Reference",
    "explanation": "Explanation",
}


@dataclass(frozen=True)
class Answer:
    """Sentence with a `{}` for the value of each claim."""

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


def write_home(pages: Path) -> None:
    """Write `index.md`."""
    judgements = read_or_judge()
    warnings = caveats({name: datasets()[name] for name in EXPERIMENTS})
    named = {judgement.id: judgement for judgement in judgements}
    write_page(
        pages / "index.md",
        "What does the network cost?",
        _PURPOSE,
        raw('<div class="first-screen"><div>'),
        "## What it found",
        *(f"{number}. {_answer(one, named)}" for number, one in enumerate(_ANSWERS, start=1)),
        raw("</div><div>"),
        *_picture(),
        raw("</div></div>"),
        "## What you can ask",
        "\n".join(f"- {question}" for question in _QUESTIONS),
        "## How certain it is",
        "\n".join(f"- {line}" for line in [*_counts(judgements), *where(), *warnings]),
        *_not_measured(judgements),
        "## What did not reproduce",
        _not_reproduced(judgements),
        toctree([f"{title} <{page}>" for title, page in _CONTENTS.items()], "hidden: "),
    )


def write_documents(pages: Path) -> None:
    """Copy all documents, and write `documents.md`, which lists them by folder."""
    documents = pages / "docs"
    shutil.copytree(ROOT / "docs", documents, ignore=shutil.ignore_patterns("_*", "*.py"))
    top = sorted(ROOT.glob("*.md"), reverse=True)
    for path in top:
        shutil.copy(path, pages)
    for path in (*(pages / path.name for path in top), *documents.rglob("*.md")):
        _copy_linked(path, pages)
    groups: dict[str, list[str]] = {folder: [] for folder in _GROUPS}
    for path in sorted(documents.rglob("*.md"), key=lambda path: (path.stem != "tutorial", path)):
        folder = path.parent.relative_to(documents).as_posix()
        groups.setdefault(folder, []).append(path.relative_to(pages).with_suffix("").as_posix())
    groups["reference"].append("reference/*")
    groups["project"] = [path.stem for path in top]
    blocks = []
    for folder, names in groups.items():
        title = _GROUPS.get(folder, folder.replace("_", " ").capitalize())
        blocks.append(toctree(names, "glob: ", "maxdepth: 1", f"caption: {title}"))
    write_page(pages / "documents.md", "Documents", *filter(None, blocks))


def _copy_linked(page: Path, pages: Path) -> None:
    """Copy the files of the repository that a document links to, such as `LICENSE`."""
    for address in _LINK.findall(page.read_text(encoding="utf-8")):
        name = Path(os.path.relpath(page.parent / address, pages))
        linked = name.parts[0] != ".." and name.suffix not in _PAGE and (ROOT / name).is_file()
        if linked and not (pages / name).exists():
            (pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, pages / name)


def _answer(answer: Answer, named: Mapping[str, Judgement]) -> str:
    """Return an answer with values of the source nearest to the papers' clusters.

    That source is the cluster, else the testbed, else the prediction.
    """
    chosen = [named[claim] for claim in answer.claims]
    for source in reversed(SOURCES):
        values = [_value(one, source) for one in chosen]
        if all(values):
            how = "predicted" if source == "predicted" else f"measured on the {source}"
            published = ", ".join(f"{one.published:g}{_unit(one)}" for one in chosen)
            return (
                f"{answer.sentence.format(*(f'**{value}**' for value in values))} "
                f"({how}; published: {published}; {', '.join(link(one.id) for one in chosen)})."
            )
    return f"{answer.sentence.format(*['?'] * len(chosen))}: neither predicted nor measured."


def _value(one: Judgement, source: Source) -> str:
    """Return a source's value for a claimed number, with its interval; empty without one."""
    found = one.findings[source]
    if found.value is None or found.interval is None:
        return ""
    low, high = found.interval
    return f"{found.value:.3g}{_unit(one)} [{low:.3g}, {high:.3g}]"


def _unit(one: Judgement) -> str:
    return {"x": " times"}.get(one.unit, f" {one.unit}")


def _picture() -> list[str]:
    caption = (
        "Headline claims as predicted and as measured, with 95 % intervals, relative to the "
        "published value. [Zoom and data](figures/headlines.md)."
    )
    return figure_image(
        "headlines", "Headline claims as published, predicted and measured", caption
    )


def _counts(judgements: Sequence[Judgement]) -> list[str]:
    """Return verdict counts, a line per source."""
    lines = []
    names: dict[Source, str] = {
        "testbed": "testbed",
        "cluster": "cluster",
        "predicted": "prediction",
    }
    for source, name in names.items():
        counts = Counter(one.findings[source].verdict for one in judgements)
        if counts["not run"] + counts["input"] < len(judgements):
            text = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
            lines.append(f"{name}, {len(judgements)} [claims](claims.md): {text}")
    return lines


def _not_measured(judgements: Sequence[Judgement]) -> list[str]:
    """Return the reasons why claims have no testbed verdict, collapsed."""
    found = [one.findings["testbed"] for one in judgements]
    reasons = Counter(one.reason for one in found if one.verdict == "not run")
    if not reasons:
        return []
    items = "".join(f"<li>{count}: {html.escape(one)}</li>" for one, count in reasons.items())
    summary = f"<summary>{reasons.total()} claims were not judged on the testbed</summary>"
    return [raw(f"<details>{summary}<ul>{items}</ul></details>")]


def _not_reproduced(judgements: Sequence[Judgement]) -> str:
    """Return failed claims by observation with reasons; the prediction's without measurements."""
    measured = any(one.findings["testbed"].value is not None for one in judgements)
    judged: Source = "testbed" if measured else "predicted"
    failed: dict[Observation, list[str]] = {}
    for one in judgements:
        if one.findings[judged].verdict == "not reproduced":
            failed.setdefault(observation_of(one.id), []).append(link(one.id, one.statement))
    source = "On the testbed" if measured else "In the prediction, without any measurement"
    if not failed:
        return f"{source}: nothing."
    lines = [
        f"- {about.name} ({', '.join(claims)}): {about.why or 'reason not known'}"
        for about, claims in failed.items()
    ]
    return "\n".join([f"{source} ([more](docs/explanation/findings.md)):", "", *lines])
