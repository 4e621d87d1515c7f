"""Training runs: a model's small shape in fp32 on the testbed, the full size on real nodes."""

from dataclasses import replace
from pathlib import Path

from repro.catalog.models.papers import model
from repro.catalog.models.trainable import expert_ranks, trainable
from repro.catalog.studies.experiments import Batch, Profile
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.nodes import Nodes, Precision
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
    """Return a model's run on the testbed, as thorough as the profile.

    Parameters
    ----------
    corpus, split
        Folder of the enwiki artefacts, and weights of training and validation data.
    pipeline
        Whether to use the shape for pipelines, which is split into `stages`.
    expert_parallel
        Ranks that the experts are sharded across.
    distributed_optimizer
        Whether replicas shard the optimizer (ZeRO-1).
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
    selection: Selection, name: str, gpus: int, batch: Batch, corpus: Path, split: str
) -> TrainingRun:
    """Return the testbed's run of one configuration of a selection."""
    chosen = selection.experiment
    return testbed_run(
        name,
        selection.profile,
        corpus,
        split,
        micro_batch_size=batch.micro_batch_size,
        microbatches=chosen.microbatches(batch, gpus),
        pipeline=chosen.pipeline,
        stages=chosen.stages(gpus),
        expert_parallel=expert_ranks(trainable(name), gpus),
        distributed_optimizer=chosen.distributed_optimizer,
    )


def on_nodes(run: TrainingRun, name: str, pipeline: bool, nodes: Nodes) -> TrainingRun:
    """Return the run of real nodes that corresponds to one of the testbed.

    Checkpoints and validations of full-size models are long: one and two of them replace all.
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
    """Return iterations of a model of the papers at full size on a single GPU."""
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
