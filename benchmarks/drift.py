"""Variation of speed-ups between measurements, with interleaved protocols and without.

Measures BERT-Large repeatedly on 8 emulated GPUs over RDMA, IPoIB and TCP/IP, with the compute
times of `repro compute`: protocols interleaved, and one protocol after the other. Both run on a
quiet machine, and with a load: a process that computes for 20 s of every 40 s.

    python benchmarks/drift.py 5
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
from tqdm import tqdm

from repro.catalog.studies.selection import select
from repro.experiments.sources import measurement_of
from repro.launch.ranks.pool import RankPool, open_pool
from repro.launch.request import PoolSpec, Request
from repro.results.outcome import Outcome

_LOAD = """
import time
while True:
    busy = time.monotonic() + 20
    while time.monotonic() < busy:
        sum(range(10_000))
    time.sleep(20)
"""


@contextmanager
def _running_load(loaded: bool) -> Iterator[None]:
    load = subprocess.Popen([sys.executable, "-c", _LOAD]) if loaded else None
    try:
        yield
    finally:
        if load is not None:
            load.kill()
            load.wait()


def _iteration_s(outcome: Outcome) -> float:
    # Ranks and links of a measurement are slower by the same factor.
    times = [
        time_s / record.slowdown_factor
        for record in outcome.records
        for time_s in record.iteration_time_s
    ]
    return sum(times) / len(times)


def _ratios(session: RankPool, requests: list[Request[Any]], interleaved: bool) -> dict[str, float]:
    """Measure once, and return the iteration times of TCP/IP and IPoIB over RDMA's."""
    began = time.monotonic()
    groups = [requests] if interleaved else [[request] for request in requests]
    outcomes = [outcome for group in groups for outcome in session.run_interleaved(group)]
    rdma, ipoib, tcp = (_iteration_s(outcome) for outcome in outcomes)
    return {
        "tcp / rdma": tcp / rdma,
        "ipoib / rdma": ipoib / rdma,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    """Measure as many times as the command line says, and print the spread of the ratios."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    measurement = measurement_of(select("weak_scaling", models="bert-large", gpus=8))
    assert isinstance(measurement.target, PoolSpec)
    requests = list(measurement.requests)
    rows = []
    with open_pool(measurement.target) as session:
        session.run_interleaved(requests)
        for loaded in (False, True):
            with _running_load(loaded):
                for _ in tqdm(range(repeats), desc="loaded" if loaded else "quiet", unit="repeat"):
                    for interleaved in (True, False):
                        ratios = _ratios(session, requests, interleaved)
                        rows.append({"load": loaded, "interleaved": interleaved, **ratios})
    table = pd.DataFrame(rows).groupby(["load", "interleaved"])
    spread = 100 * (table.max() / table.min() - 1)
    spread = spread.drop(columns="seconds").add_suffix(", spread %")
    print(table.mean().join(spread).round(2).to_string())


if __name__ == "__main__":
    main()
