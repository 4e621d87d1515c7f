"""How each claim is tested on results, by the claim's id.

The tests are small functions beside each other by experiment, one module for a few experiments:
`scaling`, `pipelines`, `batches`, `report`. Each exports `TESTS` by the ids of the claims it
answers (several documents repeat a claim, which is tested once) and `ASSUMPTIONS` by experiment, if
it needs any; they are merged here. No test knows a published number.
"""

from collections.abc import Container

from repro.claims.experiments import batches, pipelines, report, scaling
from repro.claims.experiments.definitions import Quantity, Statement
from repro.claims.published import Claim

_GROUPS: dict[tuple[str, ...], Quantity | Statement] = {
    **scaling.TESTS,
    **pipelines.TESTS,
    **batches.TESTS,
    **report.TESTS,
}
TESTS: dict[str, Quantity | Statement] = {
    claim: test for claims, test in _GROUPS.items() for claim in claims
}

# By experiment: what the documents do not state, and answers from it take for it.
ASSUMPTIONS: dict[str, str] = {
    **pipelines.ASSUMPTIONS,
    **batches.ASSUMPTIONS,
    **report.ASSUMPTIONS,
}

# Efficiencies of passes, and that they fall or are flat.
_OF_COMPUTING = (
    *("C001", "C044", "C002", "C045", "C046", "C047"),
    *("C015", "C070", "C016", "C071", "C080", "C130"),
)
# What the testbed cannot find out: its GPUs' memory is cut to what the model predicts, and their
# computing takes what the model says.
TESTBED_INPUTS = {
    **dict.fromkeys(
        ("C106", "C111", "C112"), "the memory of emulated GPUs follows from the predicted one"
    ),
    **dict.fromkeys(
        _OF_COMPUTING, "an emulated GPU takes the computing time that is predicted for a real one"
    ),
}

# What the testbed has no answer to, though its experiment was run.
NOT_ON_TESTBED: dict[str, str] = report.NOT_ON_TESTBED


def tested_by(claim: Claim, experiments: Container[str]) -> bool:
    """Whether one of the experiments answers a claim."""
    return claim.id in TESTS and TESTS[claim.id].experiment in experiments
