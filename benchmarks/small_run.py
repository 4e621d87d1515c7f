"""Training runs of the instrumentation benchmarks: GPT-2-Medium on the corpus."""

from dataclasses import replace

from repro.catalog.models.papers import model
from repro.paths import ENWIKI
from repro.train.records import TrainingRun


def small_run(iterations: int) -> TrainingRun:
    """Return a testbed-size run: one micro batch of four, no warm-up, validation or checkpoint."""
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
    """Return the same run for GPUs: full size, bf16, micro batches of eight."""
    shape = model("gpt2-medium").full
    return replace(small_run(iterations), shape=shape, precision="bf16", micro_batch_size=8)
