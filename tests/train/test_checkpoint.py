"""What a checkpoint holds is what comes back."""

from pathlib import Path

import torch
from made_up import small_run

from repro.train.checkpoint import load_checkpoint, save_checkpoint


def test_weights_and_optimizer_state_survive(one_rank: None, enwiki: Path, tmp_path: Path) -> None:
    from repro.train.run import forward_backward, set_up

    run = small_run("gpt", enwiki)
    state = set_up(run, tmp_path)
    forward_backward(state, state.training, microbatches=1)
    state.optimizer.step()
    weights = {name: w.detach().clone() for name, w in state.module.named_parameters()}
    moments = [entry["exp_avg"].clone() for entry in state.optimizer.optimizer.state.values()]
    save_checkpoint(tmp_path / "checkpoint", state.module, state.optimizer, 7)
    with torch.no_grad():
        for weight in state.module.parameters():
            weight.zero_()
        for entry in state.optimizer.optimizer.state.values():
            entry["exp_avg"].zero_()
    assert load_checkpoint(tmp_path / "checkpoint", state.module, state.optimizer) == 7
    for name, weight in state.module.named_parameters():
        assert torch.equal(weight, weights[name]), name
    restored = [entry["exp_avg"] for entry in state.optimizer.optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, restored, strict=True))
    assert any(float(moment.abs().max()) > 0 for moment in moments)
