"""A model in stages computes what it computes in one process, and sends what it must."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rank_pool import RankPool
from staged import (
    DECODER_SEQUENCE,
    HIDDEN,
    MICRO_BATCH,
    MICROBATCHES,
    SEQUENCE,
    Trained,
    named_weights,
    staged_run,
    train_in_turns,
    train_recorded,
    train_staged,
)

from repro.catalog.models.papers import Family
from repro.catalog.models.stages import layers_per_stage, tokens_to_next_stage
from repro.corpus.config import FAMILIES
from repro.errors import ReproError
from repro.observe.messages import pair_messages
from repro.train.megatron.groups import join_groups
from repro.train.records import RankRecord, TrainingRun
from repro.train.training import set_up

pytestmark = pytest.mark.slow

_ITERATIONS = 3
_LAYOUTS = [(2, 1), (4, 1), (8, 1), (2, 2)]
_FP32 = 4

Train = Callable[[Family, int, int], list[Trained]]


@pytest.fixture(scope="module")
def trained(pool: RankPool, enwiki: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """What each rank saw with so many stages and replicas; trained once."""
    scratch = tmp_path_factory.mktemp("scratch")

    @cache
    def train_layout(family: Family, stages: int, replicas: int) -> list[Trained]:
        run = staged_run(family, enwiki, stages=stages, replicas=replicas)
        return pool.run(
            train_staged,
            run,
            scratch,
            _ITERATIONS,
            ranks=stages * replicas,
            stages=stages,
            family=family,
        )

    return train_layout


@pytest.mark.parametrize(("stages", "replicas"), _LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_stages_compute_what_one_process_computes(
    trained: Train, family: Family, stages: int, replicas: int
) -> None:
    (whole,) = trained(family, 1, 1)
    ranks = trained(family, stages, replicas)
    last = [ranks[rank].losses for rank in range((stages - 1) * replicas, stages * replicas)]
    assert np.mean(last, axis=0) == pytest.approx(whole.losses, rel=1e-6)
    assert all(math.isnan(loss) for rank in ranks[: -len(last)] for loss in rank.losses)
    assert len(set(whole.losses)) == _ITERATIONS
    for rank in ranks:
        assert rank.gradient_norms == pytest.approx(whole.gradient_norms, rel=1e-6)
    assert set().union(*(rank.gradients for rank in ranks)) == set(whole.gradients)
    for rank in ranks:
        for name, gradient in rank.gradients.items():
            expected = whole.gradients[name]
            scale = max(1e-6, float(np.abs(expected).max()))
            assert np.abs(gradient - expected).max() < 1e-5 * scale, name
    assert np.median([np.abs(g).max() for g in whole.gradients.values()]) > 1e-3


@pytest.mark.parametrize("stages", [2, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_copies_of_embeddings_stay_equal(trained: Train, family: Family, stages: int) -> None:
    ranks = trained(family, stages, 1)
    for table, copies in (
        ("embedding.word_embeddings.weight", 3 if family == "t5" and stages > 2 else 2),
        ("embedding.position_embeddings.weight", 2 if family == "t5" else 1),
    ):
        held = [rank.weights[table] for rank in ranks if table in rank.weights]
        assert len(held) == copies
        assert all(np.array_equal(held[0], copy) for copy in held)


@pytest.mark.parametrize(("stages", "replicas"), _LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_boundary_carries_activations_and_their_gradients(
    trained: Train, family: Family, stages: int, replicas: int
) -> None:
    carried: Counter[tuple[int, int, int]] = Counter()
    for message in pair_messages([rank.messages for rank in trained(family, stages, replicas)]):
        below, above = sorted((message.sender, message.receiver))
        assert (message.direction == "forward") == (message.sender == below)
        assert message.end_s - message.start_s >= 0
        carried[message.iteration, below, above] += message.size_bytes
    expected = {}
    for iteration in range(_ITERATIONS):
        for rank in range((stages - 1) * replicas):
            decodes = family == "t5" and rank // replicas >= stages // 2
            tokens = SEQUENCE + (DECODER_SEQUENCE if decodes else 0)
            sequences = MICRO_BATCH * MICROBATCHES // replicas
            size = 2 * sequences * tokens * HIDDEN * _FP32
            expected[iteration, rank, rank + replicas] = size
    assert carried == expected


@pytest.mark.parametrize(("stages", "replicas"), _LAYOUTS)
def test_calls_are_those_of_one_forward_one_backward(
    trained: Train, stages: int, replicas: int
) -> None:
    micro_batches = MICROBATCHES // replicas
    for rank, seen in enumerate(trained("gpt", stages, replicas)):
        stage = rank // replicas
        first, last = stage == 0, stage == stages - 1
        filling = min(stages - stage - 1, micro_batches)
        steady = micro_batches - filling
        expected = {
            "forward-recv": 0 if first else filling + (steady > 0),
            "forward-send": filling,
            "forward-send-backward-recv": 0 if last else steady,
            "backward-send-forward-recv": 0 if first else max(0, steady - 1),
            "backward-recv": filling,
            "backward-send": 0 if first else (steady > 0) + filling,
        }
        for iteration in range(_ITERATIONS):
            calls = {end.call: end.timer for end in seen.messages if end.iteration == iteration}
            assert Counter(calls.values()) == +Counter(expected)
            assert sorted(calls) == list(range(len(calls)))


def _initial_weights(run: TrainingRun, scratch: Path) -> dict[str, np.ndarray]:
    """A rank's task: the weights a run starts from."""
    return {
        name: weight.detach().numpy().copy() for name, weight in named_weights(set_up(run, scratch))
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_starts_with_equal_embeddings_and_a_seed_per_stage(
    pool: RankPool, family: Family, enwiki: Path, tmp_path: Path
) -> None:
    whole, *ranks = (
        weights
        for stages in (1, 2, 4)
        for weights in pool.run(
            _initial_weights,
            staged_run(family, enwiki, stages=stages),
            tmp_path,
            ranks=stages,
            stages=stages,
            family=family,
        )
    )
    for table in ("embedding.word_embeddings.weight", "embedding.position_embeddings.weight"):
        held = [rank[table] for rank in ranks if table in rank]
        assert held and all(np.array_equal(copy, whole[table]) for copy in held)
    # The first product of each stage's first layer.
    products = [next(w for name, w in rank.items() if "linear_proj.w" in name) for rank in ranks]
    for one, other in itertools.combinations(products[2:], 2):
        assert not np.array_equal(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_sends_two_bytes_an_element(
    pool: RankPool, family: Family, enwiki: Path, tmp_path: Path
) -> None:
    run = replace(staged_run(family, enwiki, stages=4), precision="bf16")
    ranks = pool.run(train_recorded, run, tmp_path, ranks=4, stages=4, family=family)
    tokens = [SEQUENCE, SEQUENCE, SEQUENCE + (DECODER_SEQUENCE if family == "t5" else 0)]
    for rank, positions in enumerate(tokens):
        sizes = {end.size_bytes for end in ranks[rank].messages if end.peer == rank + 1}
        assert sizes == {MICRO_BATCH * positions * HIDDEN * 2}
    # About ln 1024 for the tokens; BERT has its sentence order, ln 2, beside it.
    assert 6.5 < ranks[-1].loss[0] < 8


def test_batches_that_take_turns_send_what_each_has(
    pool: RankPool, enwiki: Path, tmp_path: Path
) -> None:
    run = replace(staged_run("gpt", enwiki, stages=2), iterations=2)
    for by_turn in pool.run(train_in_turns, run, tmp_path, 1, 3, ranks=2, stages=2):
        # An activation one way and its gradient the other, for each micro batch.
        sent = [Counter(end.iteration for end in one.messages) for one in by_turn]
        assert sent == [{0: 2, 1: 2}, {0: 6, 1: 6}]


def test_validations_are_means_over_replicas(pool: RankPool, enwiki: Path, tmp_path: Path) -> None:
    def recorded(stages: int, replicas: int) -> list[RankRecord]:
        run = replace(
            staged_run("gpt", enwiki, stages=stages, replicas=replicas),
            iterations=2,
            validate_every=1,
            validation_batches=4 // replicas,
        )
        scratch = tmp_path / f"{stages}"
        return pool.run(train_recorded, run, scratch, ranks=stages * replicas, stages=stages)

    (whole,) = recorded(1, 1)
    assert not whole.messages and not any(map(any, whole.timer_time_s.values()))
    assert whole.phase_time_s["embedding sync"] == (0.0, 0.0)
    ranks = recorded(2, 2)
    assert np.mean([rank.loss for rank in ranks[2:]], axis=0) == pytest.approx(whole.loss, rel=1e-5)
    assert whole.validation_loss[0] != whole.validation_loss[1]
    for rank in ranks:
        assert rank.validation_loss == pytest.approx(whole.validation_loss, rel=1e-5)


def test_what_cannot_be_split_is_refused_with_its_values(tmp_path: Path, enwiki: Path) -> None:
    with pytest.raises(ReproError, match="gpt has 6 layers, not a multiple of 4 stages; fix"):
        layers_per_stage("gpt", 6, 4)
    with pytest.raises(ReproError, match="t5 has 3 layers per stack, not a multiple of 2"):
        layers_per_stage("t5", 3, 4)
    with pytest.raises(ReproError, match="pipeline_parallel is 3; t5 needs an even"):
        join_groups(0, 3, "127.0.0.1", 1, 3, "t5")
    with pytest.raises(
        ReproError, match="6 ranks do not divide into pipelines of 4 stages of 1 ranks"
    ):
        join_groups(0, 6, "127.0.0.1", 1, 4)
    run = staged_run("t5", enwiki, stages=2)
    with pytest.raises(ReproError, match="save_every is 1 and pipeline_parallel 2"):
        set_up(replace(run, save_every=1), tmp_path)
    assert layers_per_stage("t5", 3, 1) == 3
    assert tokens_to_next_stage("t5", run.shape, 4, 1) == SEQUENCE
