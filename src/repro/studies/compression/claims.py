"""Claims about compressed collectives: gains (C146-C149) and losses (C150, C151)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import xarray as xr

from repro.claims.findings import Finding, Verdict, unanswered
from repro.claims.published import Claim
from repro.claims.quantities import Answers, Prediction, StudyTest
from repro.studies.compression.predicted import HYBRID, NAIVE, base_gain_pct
from repro.studies.compression.tables import has_losses, loss_table

STUDY = "compression"
# Schemes of params/compression.yaml: everything, gradients only, all but gradients, at 4 bits.
_EVERYTHING, _GRADIENTS, _REST = "naive-4", "hybrid-4", "reversed-4"


@dataclass(frozen=True)
class Trained:
    """A statement about losses of schemes above those without compression.

    `surely` tests it with the intervals of `loss_table`, `on_average` without them.
    """

    schemes: tuple[str, ...]
    surely: Callable[[pd.DataFrame], bool]
    on_average: Callable[[pd.DataFrame], bool]

    def numbers(self, losses: pd.DataFrame) -> str:
        """Return the numbers that the statement is judged on."""
        rows = losses.loc[list(self.schemes)]
        values = ", ".join(
            f"{name} {row.above_none:+.3f} ({row.low:+.3f} to {row.high:+.3f})"
            for name, row in rows.iterrows()
        )
        return f"validation loss above none: {values}, {int(rows.seeds.min())} seeds"


_TRAINED: dict[str, Trained] = {
    "C150": Trained(
        (_EVERYTHING, _GRADIENTS),
        lambda t: bool(t.low[_EVERYTHING] > 0 >= t.low[_GRADIENTS]),
        lambda t: bool(t.above_none[_EVERYTHING] > max(0.0, t.above_none[_GRADIENTS])),
    ),
    "C151": Trained(
        (_GRADIENTS, _REST),
        lambda t: bool(t.high[_GRADIENTS] < t.low[_REST]),
        lambda t: bool(t.above_none[_GRADIENTS] < t.above_none[_REST]),
    ),
}


def _judge_losses(claim: Claim, results: xr.Dataset) -> Finding:
    """Judge a claim on the losses, if each of its schemes was trained."""
    if not has_losses(results):
        return unanswered("nothing was trained for its loss")
    test, losses = _TRAINED[claim.id], loss_table(results)
    if absent := sorted(set(test.schemes) - set(losses.index)):
        return unanswered(f"compression was run without scheme {', '.join(absent)}")
    holds: Verdict = "same direction" if test.on_average(losses) else "not reproduced"
    return Finding(None, None, "reproduced" if test.surely(losses) else holds, test.numbers(losses))


# TFLOPS and samples per second rise alike where the operations of a sample are fixed.
_on_lassen = partial(Prediction, STUDY, cluster="lassen")
ANSWERS: Answers = {
    "C146 C147": _on_lassen(partial(base_gain_pct, NAIVE)),
    "C148 C149": _on_lassen(partial(base_gain_pct, HYBRID)),
    "C150 C151": StudyTest(STUDY, _judge_losses),
}
