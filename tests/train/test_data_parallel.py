"""Data-parallel training computes what one process computes on the same data."""

from pathlib import Path

import numpy as np
import pytest
from made_up import small_run
from rank_pool import RankPool

from repro.catalog.models.papers import Family
from repro.corpus.config import FAMILIES
from repro.train.records import TrainingRun
from repro.train.run import forward_backward
from repro.train.training import set_up

pytestmark = pytest.mark.slow

_MICRO_BATCH = 3


def _gradients(run: TrainingRun, scratch: Path) -> tuple[float, dict[str, np.ndarray]]:
    """A rank's task: its loss of one iteration, and the mean of all micro batches' gradients."""
    state = set_up(run, scratch)
    state.model.zero_grad_buffer()
    loss = forward_backward(state, state.training, microbatches=run.microbatches)
    return loss, {
        name: weight.main_grad.numpy().copy() for name, weight in state.module.named_parameters()
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_two_ranks_equal_those_of_one(
    pool: RankPool, family: Family, enwiki: Path, tmp_path: Path
) -> None:
    # Two ranks see in one micro batch each what one rank sees in two.
    one, *two = (
        answer
        for ranks in (1, 2)
        for answer in pool.run(
            _gradients,
            small_run(family, enwiki, micro_batch_size=_MICRO_BATCH, microbatches=2 // ranks),
            tmp_path / f"{ranks}",
            ranks=ranks,
        )
    )
    assert np.mean([loss for loss, _ in two]) == pytest.approx(one[0], rel=1e-5)
    assert two[0][0] != pytest.approx(two[1][0], rel=1e-5), "both ranks saw the same data"
    for name, expected in one[1].items():
        for _, gradients in two:
            scale = max(1e-8, float(np.abs(expected).max()))
            assert np.abs(gradients[name] - expected).max() < 1e-4 * scale, name
    assert max(float(np.abs(g).max()) for g in one[1].values()) > 1e-3, "there are no gradients"
