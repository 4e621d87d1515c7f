"""What a checkpoint holds is what comes back."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import small_run
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from rank_pool import RankPool
from staged import named_weights, set_up_staged, staged_run

from repro.catalog.models.papers import Family
from repro.errors import ReproError
from repro.train.megatron.checkpoint import save_checkpoint
from repro.train.records import TrainingRun
from repro.train.run import forward_backward
from repro.train.training import Training, set_up

pytestmark = pytest.mark.slow


def _moments(state: Training) -> list[torch.Tensor]:
    return [entry["exp_avg"] for entry in state.optimizer.optimizer.state.values()]


def _forget(state: Training) -> None:
    with torch.no_grad():
        for tensor in (*state.module.parameters(), *_moments(state)):
            tensor.zero_()


def _restore(folder: Path, state: Training) -> int:
    """Load what `save_checkpoint` wrote, and return the iteration it was written at."""
    weights = state.module.sharded_state_dict()
    optimizer = state.optimizer.sharded_state_dict(weights, is_loading=True)
    saved = dist_checkpointing.load({"model": weights, "optimizer": optimizer}, str(folder))
    state.module.load_state_dict(saved["model"], strict=False)
    state.optimizer.load_state_dict(saved["optimizer"])
    return int(saved["iteration"])


def test_weights_and_optimizer_state_survive(one_rank: None, enwiki: Path, tmp_path: Path) -> None:
    run = small_run("gpt", enwiki)
    state = set_up(run, tmp_path)
    forward_backward(state, state.training, microbatches=1)
    state.optimizer.step()
    weights = {name: w.detach().clone() for name, w in state.module.named_parameters()}
    moments = [moment.clone() for moment in _moments(state)]
    save_checkpoint(tmp_path / "checkpoint", state.module, state.optimizer, 7)
    _forget(state)
    assert _restore(tmp_path / "checkpoint", state) == 7
    for name, weight in state.module.named_parameters():
        assert torch.equal(weight, weights[name]), name
    assert all(torch.equal(a, b) for a, b in zip(moments, _moments(state), strict=True))
    assert any(float(moment.abs().max()) > 0 for moment in moments)


def test_a_killed_writer_is_an_error(
    one_rank: None, enwiki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron-Core alone would wait for it forever."""

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(FileSystemWriterAsync, "write_preloaded_data", staticmethod(killed))
    state = set_up(small_run("gpt", enwiki), tmp_path)
    with pytest.raises(ReproError, match="writes the checkpoint was killed by SIGKILL"):
        save_checkpoint(tmp_path / "checkpoint", state.module, state.optimizer, 7)
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


_Restored = dict[str, tuple[np.ndarray, np.ndarray]]


def _weights_and_moments(state: Training) -> _Restored:
    return {
        name: (
            weight.detach().numpy().copy(),
            state.optimizer.optimizer.state[weight]["exp_avg"].numpy().copy(),
        )
        for name, weight in named_weights(state)
    }


def _save(run: TrainingRun, scratch: Path) -> _Restored:
    state = set_up_staged(run, scratch)
    forward_backward(state, state.training, microbatches=run.microbatches)
    state.optimizer.step()
    save_checkpoint(scratch / "checkpoint", state.module, state.optimizer, 7)
    return _weights_and_moments(state)


def _load(run: TrainingRun, scratch: Path) -> _Restored:
    state = set_up(run, scratch)
    # A step, so that the optimizer has state to overwrite.
    forward_backward(state, state.training, microbatches=run.microbatches)
    state.optimizer.step()
    assert _restore(scratch / "checkpoint", state) == 7
    return _weights_and_moments(state)


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_a_pipelines_checkpoint_is_that_of_the_whole_model(
    pool: RankPool, family: Family, enwiki: Path, tmp_path: Path
) -> None:
    saved: _Restored = {}
    run = staged_run(family, enwiki, stages=4)
    for stage in pool.run(_save, run, tmp_path, ranks=4, stages=4):
        saved |= stage
    for stages in (4, 1):
        restored: _Restored = {}
        run = staged_run(family, enwiki, stages=stages)
        for stage in pool.run(_load, run, tmp_path, ranks=stages, stages=stages):
            restored |= stage
        assert set(restored) == set(saved)
        for name, arrays in saved.items():
            assert all(map(np.array_equal, restored[name], arrays)), name
    assert np.median([np.abs(moment).max() for _, moment in saved.values()]) > 1e-6
