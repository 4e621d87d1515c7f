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
class OfHardware:
    """A claim's quantity or statement: its value, and half of the 90 % interval of its logarithm.

    `neutral` and `assumption` are as in `repro.claims.studies.predictions.Predicted`.
    """

    compute: Callable[[], tuple[float, float]]
    neutral: float | None = None
    assumption: str = ""

    def evaluate(self) -> tuple[float, Array]:
        """The value, and draws of it."""
        value, half_width = self.compute()
        normal = np.random.default_rng(0).standard_normal(_DRAWS)
        return value, value * np.exp(half_width / DEVIATIONS * normal)


def _speed_up() -> tuple[float, float]:
    model, gpus, global_batch = _TRAINING
    training = Training(open_model(model), gpus, global_batch)
    found = more_gpus(training, gpu("a100-sxm-80gb"), gpu("b200-sxm-180gb"), times=(1,)).iloc[0]
    return float(found.times_as_fast), float(np.log(found.high / found.times_as_fast))


def _smallest_node() -> tuple[float, float]:
    return min(node.nm for node in read_technology().nodes), 0.0


def _largest_node() -> tuple[float, float]:
    return max(node.nm for node in read_technology().nodes), 0.0


def _does_not_hold() -> tuple[float, float]:
    return 0.0, 0.0


HARDWARE: dict[str, OfHardware] = {
    "C155": OfHardware(_speed_up, neutral=1.0, assumption=_ASSUMED),
    "C156": OfHardware(_smallest_node, assumption=_RANGE),
    "C157": OfHardware(_largest_node, assumption=_RANGE),
    "C158": OfHardware(_does_not_hold, assumption=_SUMMARY),
    "C159": OfHardware(_does_not_hold, assumption=_SUMMARY),
}
