"""A whole run on one rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import small_run

from repro.catalog.phases import PHASES
from repro.train.records import Precision
from repro.train.run import train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("precision", "gradient_bytes"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_precisions_that_a_cpu_has(
    one_rank: None, enwiki: Path, tmp_path: Path, precision: Precision, gradient_bytes: int
) -> None:
    run = replace(small_run("gpt", enwiki, iterations=6, every=3), precision=precision)
    done: list[int] = []
    (record,) = train(run, tmp_path, lambda steps, _: done.append(steps))
    # The warm-up counts for nothing.
    assert done == list(range(run.iterations + 1))
    assert record.warmup == run.warmup
    assert record.gradient_bytes == gradient_bytes * record.parameters
    # Of fp32 weights in all of them; none if fp16's loss scale made the optimizer skip all steps.
    assert record.adam_state_bytes == 8 * record.parameters
    assert np.isfinite(record.loss).all()
    assert record.loss[-1] < record.loss[0], "training does not lower the loss"
    assert [span.name for span in record.spans] == ["validation", "checkpoint"] * 2
    assert set(record.phase_time_s) == set(PHASES)
    assert (tmp_path / "checkpoint").is_dir()


def test_the_same_seed_gives_the_same_losses(one_rank: None, enwiki: Path, tmp_path: Path) -> None:
    run = small_run("bert", enwiki, iterations=3)
    first, second = (train(run, tmp_path)[0].loss for _ in range(2))
    other = train(replace(run, seed=99), tmp_path)[0].loss
    assert first == second
    assert first != other
