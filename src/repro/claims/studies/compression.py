"""Compressed collectives: gains at full scale (C146-C149), and what losses say (C150, C151)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import xarray as xr

from repro.claims.findings import Finding, Verdict, unanswered
from repro.claims.published import Claim
from repro.claims.studies.predictions import Predicted
from repro.predict.explore.studies.compressed_training import HYBRID, NAIVE, base_gain_pct
from repro.results.compression import has_losses, loss_table

_OPEN = (
    "GPT-NeoX-20B's published plan (tensor 2, pipeline 4, ZeRO-1, 1,536 sequences, fp16) and "
    "cuZFP with 8 bits a value, 12 where hybrid is mild, as in the base setting of "
    "params/compressed_training.yaml: the abstract states none of it; cuZFP's speed on a V100 as "
    "recalled, within a factor of 2; two all-reduces a layer and pass, of which its parallel "
    "residuals may spare one"
)
# TFLOPS and samples per second rise alike where a sample's operations are fixed.
_NAIVE, _HYBRID = (
    Predicted(partial(base_gain_pct, scheme), 0.0, "lassen", _OPEN) for scheme in (NAIVE, HYBRID)
)
COMPRESSION: dict[str, Predicted] = {
    "C146": _NAIVE,
    "C147": _NAIVE,
    "C148": _HYBRID,
    "C149": _HYBRID,
}

# Of params/compression.yaml: everything, gradients only, and all but gradients at 4 bits.
_EVERYTHING, _GRADIENTS, _REST = "naive-4", "hybrid-4", "reversed-4"


@dataclass(frozen=True)
class Trained:
    """A statement about how far losses of `schemes` are above those without compression, in a table
    of `repro.results.compression.loss_table`: in spite of its intervals, and on average."""

    schemes: tuple[str, ...]
    surely: Callable[[pd.DataFrame], bool]
    on_average: Callable[[pd.DataFrame], bool]

    def said(self, losses: pd.DataFrame) -> str:
        """The numbers that it is judged on."""
        rows = losses.loc[list(self.schemes)]
        numbers = ", ".join(
            f"{name} {row.above_none:+.3f} ({row.low:+.3f} to {row.high:+.3f})"
            for name, row in rows.iterrows()
        )
        return f"validation loss above none: {numbers}, {int(rows.seeds.min())} seeds"


_TRAINED: dict[str, Trained] = {
    # Naive is above none, and hybrid is not.
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


def _judged(claim: Claim, results: xr.Dataset) -> Finding:
    """What the losses say, if every scheme that the claim is about was trained."""
    if not has_losses(results):
        return unanswered("nothing was trained for its loss")
    test, losses = _TRAINED[claim.id], loss_table(results)
    if absent := sorted(set(test.schemes) - set(losses.index)):
        return unanswered(f"compression was run without scheme {', '.join(absent)}")
    holds: Verdict = "same direction" if test.on_average(losses) else "not reproduced"
    return Finding(None, None, "reproduced" if test.surely(losses) else holds, test.said(losses))


LOSSES = dict.fromkeys(_TRAINED, _judged)
