"""Claims of the performance-modelling paper about hardware, tested on predictions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.catalog.systems.technology import read_technology
from repro.predict.calibration.interval import DEVIATIONS
from repro.predict.explore.hardware import more_gpus
from repro.predict.explore.jobs.fused_plans import Training
from repro.predict.workload import Array

_DRAWS = 300
# What the paper does not state.
_TRAINING = "gpt3-175b", 1024, 1536
_ASSUMED = (
    "GPT-3 175B, 1,024 GPUs, 1,536 sequences; half precision against the fastest of bf16, fp8 and "
    "nvfp4: the paper states none of them"
)
_RANGE = "the nodes of params/technology.yaml, of which nobody has stated the last"
_SUMMARY = (
    "the summary, not the paper: the abstract that it quotes has an analytical model of GPU "
    "systems, validated on published data"
)


@dataclass(frozen=True)
class ClaimEstimate:
    """Estimate of a claim's quantity: its value, and half of the 90 % interval of its logarithm.

    `neutral` and `assumption` are as in `repro.claims.studies.predictions.Predicted`.
    """

    compute: Callable[[], tuple[float, float]]
    neutral: float | None = None
    assumption: str = ""

    def evaluate(self) -> tuple[float, Array]:
        """Return the value, and draws of it."""
        value, half_width = self.compute()
        normal = np.random.default_rng(0).standard_normal(_DRAWS)
        return value, value * np.exp(half_width / DEVIATIONS * normal)


def _speed_up() -> tuple[float, float]:
    model, gpus, global_batch = _TRAINING
    training = Training(open_model(model), gpus, global_batch)
    found = more_gpus(training, gpu("a100-sxm-80gb"), gpu("b200-sxm-180gb"), times=(1,)).iloc[0]
    return float(found.times_as_fast), float(np.log(found.high / found.times_as_fast))


def _nodes_nm() -> list[float]:
    return [node.nm for node in read_technology().nodes]


HARDWARE: dict[str, ClaimEstimate] = {
    "C155": ClaimEstimate(_speed_up, neutral=1.0, assumption=_ASSUMED),
    "C156": ClaimEstimate(lambda: (min(_nodes_nm()), 0.0), assumption=_RANGE),
    "C157": ClaimEstimate(lambda: (max(_nodes_nm()), 0.0), assumption=_RANGE),
    # Statements that do not hold.
    **dict.fromkeys(("C158", "C159"), ClaimEstimate(lambda: (0.0, 0.0), assumption=_SUMMARY)),
}
