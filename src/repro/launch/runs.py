"""What the testbed trains: a model's small shape, in fp32, one micro batch an iteration."""

from pathlib import Path

from repro.catalog.experiments import Profile
from repro.catalog.models import model
from repro.train.records import TrainingRun


def testbed_run(
    name: str, micro_batch_size: int, profile: Profile, corpus: Path, split: str
) -> TrainingRun:
    """A model's run on the testbed, as thorough as the profile says.

    `corpus` and `split` are the folder of the enwiki artefacts and its weights of training and
    validation data.
    """
    entry = model(name)
    return TrainingRun(
        family=entry.family,
        shape=entry.testbed,
        precision="fp32",
        micro_batch_size=micro_batch_size,
        microbatches=1,
        warmup=profile.warmup,
        iterations=profile.iterations,
        save_every=profile.save_every,
        validate_every=profile.validate_every,
        validation_batches=profile.validation_batches,
        corpus=corpus,
        split=split,
    )
