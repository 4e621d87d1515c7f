"""What benchmarks of instrumentation repeat: GPT-2-Medium on the corpus, small or at full size."""

from dataclasses import replace

from repro.catalog.models.papers import model
from repro.paths import ENWIKI
from repro.train.records import TrainingRun


def small_run(iterations: int) -> TrainingRun:
    """Iterations of one micro batch of four, without warm-up, validations and checkpoints."""
    return TrainingRun(
        family="gpt",
        shape=model("gpt2-medium").testbed,
        precision="fp32",
        micro_batch_size=4,
        microbatches=1,
        warmup=0,
        iterations=iterations,
        save_every=0,
        validate_every=0,
        validation_batches=1,
        corpus=ENWIKI,
        split="95,5",
    )


def full_run(iterations: int) -> TrainingRun:
    """The same at full size in bf16, as GPUs train it, with micro batches of eight."""
    shape = model("gpt2-medium").full
    return replace(small_run(iterations), shape=shape, precision="bf16", micro_batch_size=8)
