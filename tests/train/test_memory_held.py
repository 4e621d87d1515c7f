"""Predicted memory is what Megatron-Core's ranks hold, part by part, on every stage."""

from dataclasses import replace
from pathlib import Path

import pytest
from held_memory import Held, held, saved_interleaved
from made_up import small_run
from rank_pool import RankPool

from repro.catalog.models.papers import Family, Shape
from repro.catalog.parallel.layouts import Layout
from repro.predict.memory import WIDTHS, Memory
from repro.predict.step.memory import memory
from repro.predict.workload import Plan, Recompute, workload
from repro.train.records import TrainingRun

pytestmark = pytest.mark.slow

# Wide enough that masks of a byte an element, and numbers per token, are small beside activations.
_GPT = Shape(
    layers=8, hidden_size=128, attention_heads=4, sequence_length=128, vocabulary_size=1024
)
_LAYOUTS = [
    Layout(micro_batch_size=2),
    Layout(data_parallel=2, zero=1),
    Layout(tensor_parallel=2, micro_batches=2),
    Layout(tensor_parallel=2, sequence_parallel=True),
    Layout(pipeline_parallel=2, micro_batches=4),
    Layout(pipeline_parallel=4, micro_batches=2),
    Layout(pipeline_parallel=4, micro_batches=6),
    Layout(pipeline_parallel=2, tensor_parallel=2, data_parallel=2, micro_batches=3),
]


def _run(layout: Layout, corpus: Path, family: Family = "gpt", shape: Shape = _GPT) -> TrainingRun:
    return replace(
        small_run(family, corpus),
        shape=shape,
        micro_batch_size=layout.micro_batch_size,
        microbatches=layout.micro_batches,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        sequence_parallel=layout.sequence_parallel,
        distributed_optimizer=layout.zero == 1,
    )


def _predicted(
    layout: Layout,
    stage: int,
    recompute: Recompute = "none",
    family: Family = "gpt",
    shape: Shape = _GPT,
) -> Memory:
    """As training does here: in fp32, without dropout."""
    plan = Plan(
        global_batch_size=layout.micro_batch_size * layout.micro_batches * layout.data_parallel,
        micro_batch_size=layout.micro_batch_size,
        data_parallel=layout.data_parallel,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        virtual_stages=layout.virtual_stages,
        sequence_parallel=layout.sequence_parallel,
        recompute=recompute,
    )
    w, _ = workload(family, shape, plan).flat()
    return memory(w, stage, zero=layout.zero, widths=WIDTHS["fp32"], dropout=False)


def _held(pool: RankPool, run: TrainingRun, layout: Layout, *task: object) -> list[Held]:
    return pool.run(
        held,
        run,
        *task,
        ranks=layout.ranks,
        stages=layout.pipeline_parallel,
        family=run.family,
        tensor_parallel=layout.tensor_parallel,
    )


@pytest.mark.parametrize("layout", _LAYOUTS, ids=str)
def test_every_stage_holds_what_is_predicted(
    pool: RankPool, enwiki: Path, tmp_path: Path, layout: Layout
) -> None:
    for rank, found in enumerate(_held(pool, _run(layout, enwiki), layout, tmp_path)):
        stage = rank * layout.pipeline_parallel // layout.ranks
        parts = _predicted(layout, stage)
        for name in ("weights", "gradients", "optimizer_states"):
            assert float(getattr(parts, name)[0]) == pytest.approx(getattr(found, name), rel=0.03)
        kept = float((parts.activations + parts.logits)[0])
        assert kept == pytest.approx(found.saved, rel=0.03), f"rank {rank}"


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_computed_again_is_not_held(
    pool: RankPool, enwiki: Path, tmp_path: Path, recompute: Recompute
) -> None:
    layout = Layout(pipeline_parallel=2, micro_batches=4)
    first = _held(pool, _run(layout, enwiki), layout, tmp_path, recompute)[0]
    kept = float(_predicted(layout, 0, recompute).activations[0])
    assert kept == pytest.approx(first.saved, rel=0.05)


@pytest.mark.parametrize("layout", [_LAYOUTS[0], _LAYOUTS[4]], ids=str)
def test_the_peak_of_an_iteration_is_within_a_tenth(
    pool: RankPool, enwiki: Path, tmp_path: Path, layout: Layout
) -> None:
    shape = _GPT.model_copy(update={"layers": 16, "vocabulary_size": 4096})
    run = _run(layout, enwiki, shape=shape)
    for stage, found in enumerate(_held(pool, run, layout, tmp_path)):
        predicted = float(_predicted(layout, stage, shape=shape).total[0])
        assert predicted == pytest.approx(found.peak, rel=0.1)


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaved_stages_hold_what_is_predicted(
    pool: RankPool, enwiki: Path, chunks: int
) -> None:
    layout = Layout(pipeline_parallel=2, virtual_stages=chunks, micro_batches=6)
    run = _run(layout, enwiki)
    found = pool.run(saved_interleaved, run, chunks, ranks=2, stages=2)
    for stage, saved in enumerate(found):
        parts = _predicted(layout, stage)
        assert float((parts.activations + parts.logits)[0]) == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_other_families_hold_what_is_predicted(
    pool: RankPool, enwiki: Path, tmp_path: Path, family: Family
) -> None:
    layout = Layout(micro_batch_size=2)
    decoder = {"decoder_sequence_length": 64} if family == "t5" else {}
    shape = _GPT.model_copy(update=decoder)
    (found,) = _held(pool, _run(layout, enwiki, family, shape), layout, tmp_path)
    parts = _predicted(layout, 0, family=family, shape=shape)
    assert float((parts.activations + parts.logits)[0]) == pytest.approx(found.saved, rel=0.03)
