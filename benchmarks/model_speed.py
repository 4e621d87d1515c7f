"""Configurations per second of the performance model, on one core, for both kinds of software.

    python benchmarks/model_speed.py [--configurations 200000]

Rows of published runs are repeated; reading them is not timed. The last column is the time of one
configuration relative to a product of two 64 x 64 matrices on the same core.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from repro.paths import PUBLISHED
from repro.predict.fused.iteration import in_blocks_s
from repro.predict.fused.parameters import read_fused
from repro.predict.network.machine import machine
from repro.predict.parameters import calibration
from repro.predict.step.quantities import iteration_times_s
from repro.predict.tables.reading import read_rows
from repro.predict.tables.training import read_runs, training_rows

_REPEATS = 3


def _per_second(call: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        call()
        found.append(times / (time.perf_counter() - began))
    return median(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", type=int, default=200_000)
    count = parser.parse_args().configurations
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    matrix = np.random.default_rng(0).random((64, 64))
    products = _per_second(lambda: [matrix @ matrix for _ in range(10_000)], 10_000)
    part, *_ = training_rows(read_rows(PUBLISHED / "training_a100_vtrain.csv"))
    old = calibration(part.cluster.calibration).parameters
    device = machine(part.cluster, old)
    unfused = part.workload.rows(np.resize(np.arange(len(part.index)), count))
    runs = read_runs(read_rows(PUBLISHED / "training_modern.csv"))
    fused = runs.rows(np.resize(np.arange(len(runs.gpus)), count))
    new = read_fused().parameters
    print(f"{'software':20} {'configurations/s':>18} {'time / product':>15}")
    for name, call in (
        ("Megatron-LM of 2021", lambda: iteration_times_s(unfused, device, old)),
        ("today's", lambda: in_blocks_s(fused, new)),
    ):
        found = _per_second(call, count)
        print(f"{name:20} {found:18,.0f} {products / found:15.2f}")


if __name__ == "__main__":
    main()
