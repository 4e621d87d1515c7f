"""Suggested next commands, printed when `repro` is called without a command."""

from repro.catalog.studies.experiments import EXPERIMENTS
from repro.paths import RESULTS

_NOTHING_MEASURED = """\
Nothing is measured here yet. Commands that need no measurement:
  repro claims                   published claims compared with predictions
  repro claims --reference       the same plus the reference run's measurements
  repro estimate MODEL --gpu h100  does your job fit, what should it reach
  repro explore                  web pages: sliders for links and batch, your job
  repro what-if llama3.1-70b     fastest parallel plans to train an open model
  jupyter lab notebooks/         notebooks; source = "predicted" needs no run
To measure:
  repro doctor                   what this machine supports, and fixes
  make repro                     corpus, emulated training, figures, verdicts"""
_MEASURED = """\
{} of {} experiments are measured here.
  repro claims                   verdicts; `repro claims C017` shows one claim
  repro compare                  results that agree with the reference run
  jupyter lab notebooks/         one notebook per section of the papers
  make repro                     measures what is missing or has changed"""


def next_steps() -> str:
    """Return a few commands that are useful now, one per line."""
    measured = sum((RESULTS / f"{name}.nc").exists() for name in EXPERIMENTS)
    steps = _MEASURED.format(measured, len(EXPERIMENTS)) if measured else _NOTHING_MEASURED
    title = "repro: measure and predict what the network costs in distributed LLM training"
    return f"{title}\n\n{steps}\n\nAll commands: repro --help"
