"""What is trained: on the testbed a model's small shape in fp32, on real nodes what they can."""

from dataclasses import replace
from pathlib import Path

from repro.catalog.models.papers import model
from repro.catalog.models.trainable import expert_ranks, trainable
from repro.catalog.studies.experiments import Batch, Profile
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.nodes import Nodes, Precision
from repro.results.schema import Cell
from repro.train.records import TrainingRun


def testbed_run(
    name: str,
    profile: Profile,
    corpus: Path,
    split: str,
    *,
    micro_batch_size: int,
    microbatches: int = 1,
    pipeline: bool = False,
    stages: int = 1,
    expert_parallel: int = 1,
    distributed_optimizer: bool = False,
) -> TrainingRun:
    """A model's run on the testbed, as thorough as the profile says.

    Parameters
    ----------
    corpus, split
        The folder of the enwiki artefacts, and its weights of training and validation data.
    pipeline
        Take the shape for pipelines; `stages` is the number of pieces it is cut into.
    expert_parallel
        Ranks that share the experts.
    distributed_optimizer
        Whether replicas share the optimizer.
    """
    entry = trainable(name)
    return TrainingRun(
        family=entry.family,
        shape=entry.testbed_size(pipeline),
        precision="fp32",
        micro_batch_size=micro_batch_size,
        microbatches=microbatches,
        warmup=profile.warmup,
        iterations=profile.iterations,
        most_iterations=profile.most_iterations,
        half_interval=profile.half_interval,
        save_every=profile.save_every,
        validate_every=profile.validate_every,
        validation_batches=profile.validation_batches,
        corpus=corpus,
        split=split,
        pipeline_parallel=stages,
        expert_parallel=expert_parallel,
        distributed_optimizer=distributed_optimizer,
    )


def selected_run(
    selection: Selection, cell: Cell, batch: Batch, corpus: Path, split: str
) -> TrainingRun:
    """The testbed's run of one configuration of a selection."""
    chosen = selection.experiment
    return testbed_run(
        cell.model,
        selection.profile,
        corpus,
        split,
        micro_batch_size=batch.micro_batch_size,
        microbatches=chosen.microbatches(batch, cell.gpus),
        pipeline=chosen.pipeline,
        stages=chosen.stages(cell.gpus),
        expert_parallel=expert_ranks(trainable(cell.model), cell.gpus),
        distributed_optimizer=chosen.distributed_optimizer,
    )


def on_nodes(run: TrainingRun, name: str, pipeline: bool, nodes: Nodes) -> TrainingRun:
    """The run that real nodes train for one of the testbed's.

    It has one checkpoint and two validations, if there are any at all: those of full-size models
    are long.
    """
    entry = trainable(name)
    full = nodes.shapes == "full"
    return replace(
        run,
        shape=entry.full_size(pipeline) if full else entry.testbed_size(pipeline),
        precision=nodes.precision,
        attention=nodes.attention,
        warmup=nodes.warmup,
        iterations=nodes.iterations,
        most_iterations=None,
        save_every=nodes.iterations if run.save_every else 0,
        validate_every=max(1, nodes.iterations // 2) if run.validate_every else 0,
    )


def gpu_run(
    name: str,
    precision: Precision,
    micro_batch_size: int,
    warmup: int,
    iterations: int,
    corpus: Path,
    split: str,
) -> TrainingRun:
    """A model of the papers at full size on a GPU by itself: nothing but iterations."""
    entry = model(name)
    return TrainingRun(
        family=entry.family,
        shape=entry.full,
        precision=precision,
        micro_batch_size=micro_batch_size,
        microbatches=1,
        warmup=warmup,
        iterations=iterations,
        save_every=0,
        validate_every=0,
        validation_batches=1,
        corpus=corpus,
        split=split,
    )
