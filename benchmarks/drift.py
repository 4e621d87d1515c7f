"""How far a speed-up varies from one measurement to the next, in turns and one protocol after the
other, on a quiet machine and beside a load that comes and goes.

Measures BERT-Large on 8 emulated GPUs over RDMA, IPoIB and TCP/IP again and again, with the
computing times of `repro compute`. The load is one process that computes for some of
every 40 seconds.

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
from repro.experiments.obtain import resolve
from repro.launch.messages import Order, Site
from repro.launch.ranks.sites import Session, open_site
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
def _beside(loaded: bool) -> Iterator[None]:
    load = subprocess.Popen([sys.executable, "-c", _LOAD]) if loaded else None
    try:
        yield
    finally:
        if load is not None:
            load.kill()
            load.wait()


def _iteration_s(outcome: Outcome) -> float:
    # Each measurement's links are as slow as its ranks.
    times = [
        time_s / record.slower for record in outcome.records for time_s in record.iteration_time_s
    ]
    return sum(times) / len(times)


def _ratios(session: Session, orders: list[Order[Any]], in_turns: bool) -> dict[str, float]:
    """TCP/IP's and IPoIB's iteration over RDMA's, measured once."""
    began = time.monotonic()
    groups = [orders] if in_turns else [[order] for order in orders]
    found = [outcome for group in groups for outcome in session.take_turns(group)]
    rdma, ipoib, tcp = (_iteration_s(outcome) for outcome in found)
    return {
        "tcp / rdma": tcp / rdma,
        "ipoib / rdma": ipoib / rdma,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    """Measure as often as the command line says, and print how far apart the ratios are."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    resolved = resolve(select("weak_scaling", models="bert-large", gpus=8))
    assert isinstance(resolved.where, Site)
    orders = [case.order for case in resolved.cases]
    rows = []
    with open_site(resolved.where) as session:
        session.take_turns(orders)
        for loaded in (False, True):
            with _beside(loaded):
                for _ in tqdm(range(repeats), desc="loaded" if loaded else "quiet", unit="repeat"):
                    for in_turns in (True, False):
                        ratios = _ratios(session, orders, in_turns)
                        rows.append({"load": loaded, "in turns": in_turns, **ratios})
    table = pd.DataFrame(rows).groupby(["load", "in turns"])
    spread = 100 * (table.max() / table.min() - 1)
    spread = spread.drop(columns="seconds").add_suffix(", spread %")
    shown = table.mean().join(spread)
    print(shown.round(2).to_string())


if __name__ == "__main__":
    main()
