"""What to do next, for someone who calls `repro` without saying what."""

from repro.catalog.studies.experiments import EXPERIMENTS
from repro.paths import RESULTS

_NOTHING_MEASURED = """\
Nothing is measured here yet. Without measuring:
  repro claims                   published claims beside what the performance model predicts
  repro claims --reference       what another machine's run measured, kept in git
  repro explore                  sliders: link rate, latency, batch and GPUs move the prediction
  repro what-if llama3.1-70b     the best plans to train an open model on today's GPUs
  jupyter lab notebooks/         source = "predicted" needs no run
To measure:
  repro doctor                   what this machine can do, and how to make it do more
  make repro                     corpus, training on emulated nodes, figures, verdicts"""
_MEASURED = """\
{} of {} experiments are measured here.
  repro claims      what became of the published claims; `repro claims C017` shows one in full
  repro compare     which cells agree with the reference run
  jupyter lab notebooks/         one notebook per section of the papers
  make repro        measures what is missing or has changed"""


def next_steps() -> str:
    """A few commands that make sense now, a line each."""
    measured = sum((RESULTS / f"{name}.nc").exists() for name in EXPERIMENTS)
    steps = _MEASURED.format(measured, len(EXPERIMENTS)) if measured else _NOTHING_MEASURED
    return f"repro: the wind tunnel for LLM interconnects\n\n{steps}\n\n`repro --help` has it all."
