"""Single iterations of a run, timed."""

import time
from collections.abc import Callable

from repro.train.run import device_scope, iterate
from repro.train.training import Training


def loading(state: Training) -> Callable[[], Callable[[], float]]:
    """What loads a batch, and returns the iteration on it: that returns its CPU time in seconds."""

    def load() -> Callable[[], float]:
        batches = [next(state.training) for _ in range(state.run.microbatches)]

        def step() -> float:
            with device_scope():
                start = time.process_time()
                iterate(state, batches)
                return time.process_time() - start

        return step

    return load
