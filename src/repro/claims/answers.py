"""Verdicts that the selection of a notebook can give."""

import html
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd
import xarray as xr

from repro.claims.findings import Judgement
from repro.claims.published import documented_claims
from repro.claims.quantities import MEASURED, PREDICTED, answered_by
from repro.claims.reference import judge_reference
from repro.claims.tables import VERDICT_COLUMNS, frame
from repro.claims.verdicts import judge_claims, missing
from repro.results.store import has_runs


@dataclass(frozen=True)
class Answers:
    """Rows of the answered claims, and one line that counts the others by reason."""

    rows: pd.DataFrame
    rest: str

    def _repr_html_(self) -> str:
        styled = self.rows.style.set_table_styles(
            [{"selector": "th, td", "props": "text-align: left"}]
        )
        table = styled.to_html()
        return f"{table if len(self.rows) else ''}<p>{html.escape(self.rest)}</p>"


def answers(results: Mapping[str, xr.Dataset]) -> Answers:
    """Judge the claims that the given experiments answer, as far as their selections allow.

    Measurements answer claims; where nothing was measured, predictions do.

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
    for one in _judgements(results):
        if reason := partial or _unanswered(one, sources):
            reasons[reason] += 1
        elif "testbed" in sources:
            answered.append(one)
        else:
            # The testbed was not requested, so its reason is of no interest.
            testbed = replace(one.findings["testbed"], reason="")
            answered.append(replace(one, findings={**one.findings, "testbed": testbed}))
    absent = [
        name for source in set(MEASURED) - sources for name in (source, VERDICT_COLUMNS[source])
    ]
    why = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    rest = f"{reasons.total()} claims are not answered by this selection ({why})." if why else ""
    return Answers(frame(answered).drop(columns=absent, errors="ignore"), rest)


def _judgements(results: Mapping[str, xr.Dataset]) -> list[Judgement]:
    """Judge results, or read the verdicts of the reference run, whose samples are not kept."""
    if any("reference" in dataset.attrs for dataset in results.values()):
        return judge_reference([one for one in documented_claims() if answered_by(one, results)])
    return judge_claims(results)


def _unanswered(judgement: Judgement, sources: set[str]) -> str:
    """Return why no source has a verdict; empty if one has."""
    measured = [source for source in MEASURED if source in sources]
    found = [judgement.findings[source] for source in measured or PREDICTED]
    if any(one.verdict != "not run" for one in found):
        return ""
    return "; ".join(one.reason for one in found)
