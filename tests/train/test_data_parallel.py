"""Data-parallel training computes what one process computes on the same data."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from made_up import small_run

from repro.catalog.models import Family
from repro.corpus.config import FAMILIES

_MICRO_BATCH = 3


def _rank(
    family: Family,
    rank: int,
    ranks: int,
    port: int,
    corpus: Path,
    scratch: Path,
    answer: Connection,
) -> None:
    """One iteration of a rank: the mean of all micro batches' gradients, and the rank's loss."""
    import torch

    from repro.train.groups import join_groups, leave_groups
    from repro.train.run import device_scope, forward_backward, set_up

    torch.set_num_threads(1)
    # Two ranks see in one micro batch each what one rank sees in two.
    microbatches = 2 // ranks
    run = small_run(family, corpus, micro_batch_size=_MICRO_BATCH, microbatches=microbatches)
    with device_scope():
        join_groups(rank, ranks, "127.0.0.1", port)
        state = set_up(run, scratch)
        state.model.zero_grad_buffer()
        loss = forward_backward(state, state.training, microbatches=microbatches)
        gradients = {
            name: weight.main_grad.numpy().copy()
            for name, weight in state.module.named_parameters()
        }
        leave_groups()
    answer.send((loss, gradients))


def _train(
    family: Family, ranks: int, port: int, corpus: Path, scratch: Path
) -> list[tuple[float, dict[str, np.ndarray]]]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_rank, args=(family, rank, ranks, port, corpus, scratch, theirs)
        )
        process.start()
        pipes.append(ours)
        processes.append(process)
    answers = []
    for pipe in pipes:
        assert pipe.poll(120), "a rank did not answer"
        answers.append(pipe.recv())
    for process in processes:
        process.join()
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_two_ranks_equal_those_of_one(
    family: Family, enwiki: Path, tmp_path: Path, free_ports: list[int]
) -> None:
    (one,) = _train(family, 1, free_ports[0], enwiki, tmp_path / "one")
    two = _train(family, 2, free_ports[1], enwiki, tmp_path / "two")
    assert np.mean([loss for loss, _ in two]) == pytest.approx(one[0], rel=1e-5)
    assert two[0][0] != pytest.approx(two[1][0], rel=1e-5), "both ranks saw the same data"
    for name, expected in one[1].items():
        for _, gradients in two:
            scale = max(1e-8, float(np.abs(expected).max()))
            assert np.abs(gradients[name] - expected).max() < 1e-4 * scale, name
    assert max(float(np.abs(g).max()) for g in one[1].values()) > 1e-3, "there are no gradients"
