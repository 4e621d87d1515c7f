"""Decoders of today, and experts spread over ranks, compute what one process computes."""

import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from made_up import small_run
from rank_pool import RankPool

from repro.catalog.models.expert_volumes import all_to_all_bytes, held_parameters
from repro.catalog.models.open_models import DecoderShape
from repro.catalog.phases import PHASES
from repro.catalog.systems.nodes import Attention
from repro.train.records import RankRecord, TrainingRun
from repro.train.run import forward_backward, train
from repro.train.training import Training, set_up

pytestmark = pytest.mark.slow

_MICRO_BATCH, _RANKS = 2, 4
_EXPERT = re.compile(r"local_experts\.(\d+)")


def _whole_names(state: Training) -> dict[str, torch.nn.Parameter]:
    """This rank's parameters, experts by their numbers in the whole model."""
    from megatron.core import parallel_state

    shape, shared = state.run.shape, state.run.expert_parallel
    assert isinstance(shape, DecoderShape)
    first = parallel_state.get_expert_model_parallel_rank() * shape.experts // shared
    return {
        _EXPERT.sub(lambda found: f"expert {first + int(found[1])}", name): weight
        for name, weight in state.module.named_parameters()
    }


def _gradients(run: TrainingRun, scratch: Path) -> tuple[float, float, dict[str, np.ndarray]]:
    """A rank's task: loss, norm of all gradients and its gradients of one iteration, from weights
    that follow from their names."""
    state = set_up(run, scratch)
    weights = _whole_names(state)
    for name, weight in weights.items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        norm = 1.0 if "norm" in name else 0.0
        with torch.no_grad():
            weight.copy_(norm + 0.1 * torch.randn(weight.shape, generator=generator))
    state.model.zero_grad_buffer()
    state.optimizer.zero_grad()
    loss = forward_backward(state, state.training, microbatches=run.microbatches)
    found = {name: weight.main_grad.numpy().copy() for name, weight in weights.items()}
    return loss, float(state.optimizer.step()[1]), found


@pytest.mark.parametrize(
    ("name", "experts", "attention"),
    [
        ("llama3.1-8b", 1, "megatron"),
        # Torch's kernel, too, lets queries share keys.
        ("llama3.1-8b", 1, "torch"),
        ("mixtral-8x7b", 1, "megatron"),
        ("mixtral-8x7b", 2, "megatron"),
        ("mixtral-8x7b", 4, "torch"),
    ],
)
def test_losses_and_gradients_are_those_of_one_rank(
    pool: RankPool, enwiki: Path, tmp_path: Path, name: str, experts: int, attention: Attention
) -> None:
    # Four ranks see in one micro batch each what one rank sees in four.
    runs = {
        ranks: replace(
            small_run(
                "gpt",
                enwiki,
                micro_batch_size=_MICRO_BATCH,
                microbatches=_RANKS // ranks,
                name=name,
            ),
            expert_parallel=experts if ranks > 1 else 1,
            attention=attention if ranks > 1 else "megatron",
        )
        for ranks in (1, _RANKS)
    }
    one, *several = (
        answer
        for ranks, run in runs.items()
        for answer in pool.run(
            _gradients, run, tmp_path / f"{ranks}", ranks=ranks, experts=run.expert_parallel
        )
    )
    assert np.mean([loss for loss, _, _ in several]) == pytest.approx(one[0], rel=1e-5)
    held = [set(gradients) for _, _, gradients in several]
    assert set.union(*held) == set(one[2])
    assert (held[0] == held[1]) == (experts == 1), "experts are not spread over ranks"
    for _, norm, gradients in several:
        assert norm == pytest.approx(one[1], rel=1e-4)
        for parameter, found in gradients.items():
            expected = one[2][parameter]
            scale = max(1e-6, float(np.abs(expected).max()))
            assert np.abs(found - expected).max() < 1e-3 * scale, parameter


def _exchanged(run: TrainingRun, scratch: Path) -> int:
    """A rank's task: bytes that its all-to-alls take to other ranks in one iteration."""
    import torch.distributed as dist

    state = set_up(run, scratch)
    sent, exchange = 0, dist.all_to_all_single

    def counting(output: torch.Tensor, given: torch.Tensor, **options: Any) -> None:
        nonlocal sent
        others = list(options["input_split_sizes"])
        del others[dist.get_rank(options["group"])]
        sent += int(sum(others)) * given[:1].nbytes
        exchange(output, given, **options)

    with mock.patch.object(dist, "all_to_all_single", counting):
        forward_backward(state, state.training, microbatches=run.microbatches)
    return sent


def test_exchanges_are_the_closed_form(pool: RankPool, enwiki: Path, tmp_path: Path) -> None:
    run = replace(
        small_run("gpt", enwiki, micro_batch_size=2, microbatches=2, name="olmoe-1b-7b"),
        expert_parallel=_RANKS,
    )
    assert isinstance(run.shape, DecoderShape)
    sent = pool.run(_exchanged, run, tmp_path, ranks=_RANKS, experts=_RANKS)
    expected = all_to_all_bytes(run.shape, 4, _RANKS, 4)
    # Experts are not chosen evenly; what one rank sends more, another sends less.
    assert np.mean(sent) == pytest.approx(expected, rel=0.01)
    assert sent == pytest.approx([expected] * _RANKS, rel=0.2)


def _train(run: TrainingRun, scratch: Path) -> RankRecord:
    return train(run, scratch)[0]


def test_exchanges_are_phases_of_their_own(pool: RankPool, enwiki: Path, tmp_path: Path) -> None:
    run = replace(
        small_run("gpt", enwiki, iterations=2, every=2, name="olmoe-1b-7b"), expert_parallel=2
    )
    records = pool.run(_train, run, tmp_path, ranks=4, experts=2)
    assert isinstance(run.shape, DecoderShape)
    for record in records:
        assert record.parameters == sum(held_parameters(run.shape, 2))
        assert record.adam_state_bytes == 8 * record.parameters
        times = {name: np.array(record.phase_time_s[name]) for name in PHASES}
        for way in ("forward", "backward"):
            assert (times[f"{way} all-to-all"] > 0).all()
        assert np.allclose(sum(times.values()), record.iteration_time_s)
        assert [span.name for span in record.spans] == ["validation", "checkpoint"]
    assert records[0].validation_loss == records[1].validation_loss
    assert (tmp_path / "checkpoint").is_dir()
