"""What the testbed trains: a model's small shape, in fp32."""

from pathlib import Path

from repro.catalog.experiments import Profile
from repro.catalog.models import model
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
    distributed_optimizer: bool = False,
) -> TrainingRun:
    """A model's run on the testbed, as thorough as the profile says.

    Parameters
    ----------
    corpus, split
        The folder of the enwiki artefacts, and its weights of training and validation data.
    pipeline
        Take the shape for pipelines; `stages` is the number of pieces it is cut into.
    distributed_optimizer
        Whether replicas share the optimizer.
    """
    entry = model(name)
    return TrainingRun(
        family=entry.family,
        shape=entry.testbed_size(pipeline),
        precision="fp32",
        micro_batch_size=micro_batch_size,
        microbatches=microbatches,
        warmup=profile.warmup,
        iterations=profile.iterations,
        save_every=profile.save_every,
        validate_every=profile.validate_every,
        validation_batches=profile.validation_batches,
        corpus=corpus,
        split=split,
        pipeline_parallel=stages,
        distributed_optimizer=distributed_optimizer,
    )
