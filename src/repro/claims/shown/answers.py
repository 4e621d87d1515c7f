"""The verdicts that a notebook's selection can give."""

import html
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import xarray as xr

from repro.claims.experiments.quantities import tested_by
from repro.claims.findings import Judgement
from repro.claims.published import documented_claims
from repro.claims.reference import judge_reference
from repro.claims.shown.table import frame
from repro.claims.verdicts import judge_claims, missing
from repro.results.store import has_runs

_COLUMNS = {"testbed": ["testbed", "verdict"], "cluster": ["cluster", "verdict there"]}


@dataclass(frozen=True)
class Answers:
    """A row per claim that was answered, and in one line how many were not, and why."""

    rows: pd.DataFrame
    rest: str

    def _repr_html_(self) -> str:
        styled = self.rows.style.set_table_styles(
            [{"selector": "th, td", "props": "text-align: left"}]
        )
        table = styled.to_html()
        return f"{table if len(self.rows) else ''}<p>{html.escape(self.rest)}</p>"


def answers(results: Mapping[str, xr.Dataset]) -> Answers:
    """Judge the claims that the given experiments test, as far as their selections go.

    Claims are answered by what was measured; where nothing was, by the prediction.

    Parameters
    ----------
    results : mapping
        Datasets of the schema by experiment name.
    """
    sources = {
        str(source)
        for dataset in results.values()
        if has_runs(dataset)
        for source in dataset["source"].values
    }
    partial = "; ".join(
        text
        for name, dataset in results.items()
        for source in sources
        if (source == "predicted" or "reference" in dataset.attrs)
        and (text := missing(name, dataset, source))
    )
    answered, reasons = [], Counter[str]()
    kept = any("reference" in dataset.attrs for dataset in results.values())
    for judgement in _of_reference(results) if kept else judge_claims(results):
        if reason := partial or _unanswered(judgement, sources):
            reasons[reason] += 1
        else:
            # That the testbed did not run is no news where something else was asked for.
            answered.append(judgement if "testbed" in sources else replace(judgement, reason=""))
    absent = [name for source in set(_COLUMNS) - sources for name in _COLUMNS[source]]
    why = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    rest = f"{reasons.total()} claims are not answered by this selection ({why})." if why else ""
    return Answers(frame(answered).drop(columns=absent, errors="ignore"), rest)


def _of_reference(results: Mapping[str, xr.Dataset]) -> list[Judgement]:
    """The verdicts that are kept of the reference run: its samples are not."""
    return judge_reference([claim for claim in documented_claims() if tested_by(claim, results)])


def _unanswered(judgement: Judgement, sources: set[str]) -> str:
    """Why none of the sources has a verdict; empty if one has."""
    found = {
        "testbed": (judgement.verdict, judgement.reason),
        "cluster": (judgement.cluster_verdict, judgement.cluster_reason),
    }
    measured = [found[source] for source in found if source in sources]
    asked = measured or [(judgement.predicted_verdict, judgement.predicted_reason)]
    if any(verdict != "not run" for verdict, _ in asked):
        return ""
    return "; ".join(reason for _, reason in asked)
