"""Waits of tests for what other processes do: none of them says how fast that has to be."""

import time
from collections.abc import Callable

# Only what never happens takes as long. A machine whose host works for others stands still for
# seconds, and starting ranks, a kernel or Slurm's daemons has taken minutes on one. Less than the
# ten minutes after which a collective gives up.
PATIENCE_S = 300.0


def wait_until(reached: Callable[[], object], otherwise: Callable[[], object] = str) -> None:
    """Return once it is reached; an AssertionError with what `otherwise` returns if it never is."""
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.05)
