"""Overhead of sampling a node's counters in a thread of a rank.

Measures blocks of small matmuls, alternately with and without sampling, so that drift of the
machine affects both alike. Their time is mostly Python's, so they contend for the interpreter
lock. Prints the median of the ratios of neighbouring blocks.

    python benchmarks/counters.py
"""

import time
from contextlib import nullcontext

import numpy as np
import torch
from tqdm import tqdm

from repro.observe.counters import open_counters
from repro.observe.nic import SAMPLES_PER_S, sample_counters

_BLOCKS, _MATMULS, _SIZE = 120, 20_000, 16


def _block_s(matrix: torch.Tensor) -> float:
    start = time.monotonic()
    for _ in range(_MATMULS):
        matrix @ matrix
    return time.monotonic() - start


def main() -> None:
    """Run the blocks and print the ratio."""
    torch.set_num_threads(1)
    matrix = torch.rand(_SIZE, _SIZE)
    times: dict[bool, list[float]] = {False: [], True: []}
    with open_counters() as counters:
        for block in tqdm(range(_BLOCKS), unit="block"):
            sampled = bool(block % 2)
            with sample_counters(counters.read) if sampled else nullcontext():
                times[sampled].append(_block_s(matrix))
        begin = time.monotonic()
        for _ in range(1000):
            counters.read()
        read_s = (time.monotonic() - begin) / 1000
    # The first pair of blocks warms up.
    ratios = np.array(times[True])[1:] / np.array(times[False])[1:]
    low, high = np.percentile(ratios, [25, 75])
    print(
        f"{len(counters.names)} counters, {1e6 * read_s:.0f} us per sample, "
        f"{SAMPLES_PER_S} samples per second"
    )
    print(f"ratio {np.median(ratios):.4f} (middle half {low:.4f}-{high:.4f})")


if __name__ == "__main__":
    main()
