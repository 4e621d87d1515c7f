"""Closed forms and log agree exactly: bytes and calls, by group, phase and rank."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from interleaved import log_interleaved
from made_up import small_run
from rank_pool import RankPool
from split_norms import split_norms

from repro.catalog.models.papers import Shape
from repro.catalog.parallel.communication_volumes import step_communication
from repro.catalog.parallel.layouts import Layout
from repro.observe.transfers import Transfer, check_clocks
from repro.train.records import TrainingRun
from repro.train.run import train

pytestmark = pytest.mark.slow

_FP32 = 4
_SHAPES = {
    "small": Shape(
        layers=4,
        hidden_size=32,
        attention_heads=4,
        sequence_length=32,
        vocabulary_size=1024,
    ),
    # No size is a multiple of what buffers are aligned to.
    "odd": Shape(
        layers=8,
        hidden_size=36,
        ffn_hidden_size=60,
        attention_heads=4,
        sequence_length=20,
        vocabulary_size=1028,
    ),
}
_PLAIN = [
    Layout(data_parallel=2, micro_batch_size=2, micro_batches=2),
    Layout(data_parallel=4, micro_batches=1),
    Layout(data_parallel=3),
    Layout(tensor_parallel=2, micro_batch_size=2, micro_batches=3),
    Layout(tensor_parallel=4, micro_batches=2),
    Layout(tensor_parallel=2, data_parallel=2, micro_batches=2),
    Layout(pipeline_parallel=2, micro_batch_size=2, micro_batches=4),
    Layout(pipeline_parallel=4, micro_batches=2),
    Layout(pipeline_parallel=4, micro_batches=5),
    Layout(pipeline_parallel=2, data_parallel=2, micro_batches=3),
    Layout(pipeline_parallel=2, tensor_parallel=2, micro_batches=1),
    Layout(pipeline_parallel=2, tensor_parallel=2, data_parallel=2, micro_batches=2),
    Layout(pipeline_parallel=4, tensor_parallel=2, micro_batches=4),
]
_INTERLEAVED = [
    Layout(pipeline_parallel=2, virtual_stages=2, micro_batches=2),
    Layout(pipeline_parallel=2, virtual_stages=2, micro_batches=6, data_parallel=2),
    Layout(pipeline_parallel=4, virtual_stages=2, micro_batches=4),
    Layout(pipeline_parallel=4, virtual_stages=2, micro_batches=12),
    Layout(pipeline_parallel=2, virtual_stages=4, micro_batches=4),
    Layout(pipeline_parallel=2, virtual_stages=2, tensor_parallel=2, micro_batches=4),
]


def _name(layout: Layout) -> str:
    usual = Layout()
    return ",".join(f"{k}={v}" for k, v in vars(layout).items() if v != getattr(usual, k))


def _logged(run: TrainingRun, scratch: Path) -> tuple[Transfer, ...]:
    """A rank's task: what it communicates in training."""
    return train(run, scratch)[0].transfers


def _logged_in_parts(run: TrainingRun, scratch: Path) -> tuple[Transfer, ...]:
    """`_logged`, with layer norms for sequence parallelism."""
    with split_norms():
        return _logged(run, scratch)


def _run(shape: Shape, layout: Layout, corpus: Path, iterations: int = 1) -> TrainingRun:
    return replace(
        small_run("gpt", corpus),
        shape=shape,
        iterations=iterations,
        micro_batch_size=layout.micro_batch_size,
        microbatches=layout.micro_batches,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        sequence_parallel=layout.sequence_parallel,
        distributed_optimizer=layout.zero == 1,
        log_communication=True,
    )


def _check(by_rank: list[list[Transfer]], shape: Shape, layout: Layout) -> None:
    assert len(by_rank) == layout.ranks
    check_clocks(by_rank)
    for rank, found in enumerate(by_rank):
        stage = rank * layout.pipeline_parallel // layout.ranks
        expected: Counter[tuple[str, str, str, int]] = Counter()
        for one in step_communication(shape, layout, stage, _FP32, _FP32):
            expected[one.role, one.phase, one.operation, one.size_bytes] += one.calls
        logged = Counter(
            (one.role, one.phase, one.operation, one.size_bytes)
            for one in found
            # The instrument's own.
            if one.operation != "barrier"
        )
        assert logged == expected, f"rank {rank}"


# What differs in one layout comes in a row, for ranks stay in their groups.
@pytest.mark.parametrize(
    ("shape", "zero", "iterations"), [("odd", 0, 1), ("odd", 1, 1), ("small", 1, 2)]
)
@pytest.mark.parametrize("layout", _PLAIN, ids=_name)
def test_training_communicates_what_the_closed_forms_say(
    pool: RankPool,
    enwiki: Path,
    tmp_path: Path,
    layout: Layout,
    shape: str,
    zero: int,
    iterations: int,
) -> None:
    layout = replace(layout, zero=zero)
    by_rank = pool.run(
        _logged,
        _run(_SHAPES[shape], layout, enwiki, iterations),
        tmp_path,
        ranks=layout.ranks,
        stages=layout.pipeline_parallel,
        tensor_parallel=layout.tensor_parallel,
    )
    for iteration in range(iterations):
        of_it = [[one for one in found if one.iteration == iteration] for found in by_rank]
        _check(of_it, _SHAPES[shape], layout)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(tensor_parallel=2, sequence_parallel=True, micro_batches=2),
        Layout(tensor_parallel=4, sequence_parallel=True),
        Layout(tensor_parallel=2, sequence_parallel=True, pipeline_parallel=2, micro_batches=3),
        Layout(tensor_parallel=2, sequence_parallel=True, data_parallel=2),
    ],
    ids=_name,
)
def test_sequence_parallelism_communicates_what_the_closed_forms_say(
    pool: RankPool, enwiki: Path, tmp_path: Path, layout: Layout, zero: int
) -> None:
    shape, layout = _SHAPES["odd"], replace(layout, zero=zero)
    by_rank = pool.run(
        _logged_in_parts,
        _run(shape, layout, enwiki),
        tmp_path,
        ranks=layout.ranks,
        stages=layout.pipeline_parallel,
        tensor_parallel=layout.tensor_parallel,
    )
    _check(by_rank, shape, layout)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("layout", _INTERLEAVED, ids=_name)
def test_interleaved_pipelines_communicate_what_the_closed_forms_say(
    pool: RankPool, enwiki: Path, layout: Layout, zero: int
) -> None:
    shape, layout = _SHAPES["odd"], replace(layout, zero=zero)
    by_rank = pool.run(
        log_interleaved,
        _run(shape, layout, enwiki),
        layout.virtual_stages,
        ranks=layout.ranks,
        stages=layout.pipeline_parallel,
        tensor_parallel=layout.tensor_parallel,
    )
    _check(by_rank, shape, layout)
