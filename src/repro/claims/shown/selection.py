"""Which claims a notebook or a command shows."""

from collections.abc import Sequence
from typing import get_args

from repro.catalog.reading import choose
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.claims.experiments.quantities import TESTS
from repro.claims.findings import Verdict
from repro.claims.published import read_claims
from repro.claims.verdicts import DOCUMENTS, Judgement


def select_claims(source: str) -> set[str]:
    """Ids of the claims of one document, or of all that are judged.

    Raises
    ------
    ReproError
        The document is unknown; the message lists the known ones.
    """
    documents = choose("source", source, {**{one: (one,) for one in DOCUMENTS}, "all": DOCUMENTS})
    return {claim.id for claim in read_claims() if claim.source in documents}


def filter_claims(
    judgements: Sequence[Judgement], ids: Sequence[str], verdict: str | None, experiment: str | None
) -> list[Judgement]:
    """The judgements that have one of the ids, the verdict (of any source) and the experiment.

    Without ids those of all, and likewise for the others.

    Raises
    ------
    ReproError
        An id, the verdict or the experiment is unknown; the message lists the known ones.
    """
    known = {judgement.id: judgement for judgement in judgements}
    kept = [choose("claim", one.upper(), known) for one in ids] or list(judgements)
    if verdict is not None:
        choose("verdict", verdict, {one: one for one in get_args(Verdict)})
        kept = [j for j in kept if verdict in (j.predicted_verdict, j.verdict, j.cluster_verdict)]
    if experiment is not None:
        choose("experiment", experiment, {name: name for name in EXPERIMENTS})
        kept = [j for j in kept if j.id in TESTS and TESTS[j.id].experiment == experiment]
    return kept
