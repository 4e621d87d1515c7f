"""Which claims a notebook shows."""

from repro.catalog.reading import choose
from repro.claims.published import read_claims
from repro.claims.verdicts import DOCUMENTS


def select_claims(source: str) -> set[str]:
    """Ids of the claims of one document, or of all that are judged.

    Raises
    ------
    ReproError
        The document is unknown; the message lists the known ones.
    """
    documents = choose("source", source, {**{one: (one,) for one in DOCUMENTS}, "all": DOCUMENTS})
    return {claim.id for claim in read_claims() if claim.source in documents}
