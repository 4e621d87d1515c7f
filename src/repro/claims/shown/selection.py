"""Which claims a notebook or a command shows."""

from collections.abc import Sequence
from typing import get_args

from repro.catalog.reading import choose
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.claims.experiments.quantities import tested_by
from repro.claims.findings import Judgement, Verdict
from repro.claims.published import DOCUMENTS, Claim, documented_claims


def select_claims(source: str) -> list[Claim]:
    """The claims of one document, or all that are judged.

    Raises
    ------
    ReproError
        The document is unknown; the message lists the known ones.
    """
    documents = choose("source", source, {**{one: (one,) for one in DOCUMENTS}, "all": DOCUMENTS})
    return [claim for claim in documented_claims() if claim.source in documents]


def asked_claims(ids: Sequence[str], experiment: str | None) -> list[Claim]:
    """The claims that have one of the ids, and that the experiment answers.

    Without ids those of all, and likewise for the experiment.

    Raises
    ------
    ReproError
        An id or the experiment is unknown; the message lists the known ones.
    """
    known = {claim.id: claim for claim in documented_claims()}
    asked = [choose("claim", one.upper(), known) for one in ids] or list(known.values())
    if experiment is None:
        return asked
    choose("experiment", experiment, {name: name for name in EXPERIMENTS})
    return [claim for claim in asked if tested_by(claim, {experiment})]


def check_verdict(verdict: str) -> None:
    """Refuse what is none.

    Raises
    ------
    ReproError
        The verdict is unknown; the message lists the known ones.
    """
    choose("verdict", verdict, {one: one for one in get_args(Verdict)})


def with_verdict(judgements: Sequence[Judgement], verdict: str) -> list[Judgement]:
    """Those that have the verdict, of any source."""
    return [j for j in judgements if verdict in (j.predicted_verdict, j.verdict, j.cluster_verdict)]
