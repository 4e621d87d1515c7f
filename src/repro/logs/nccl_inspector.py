"""Reader of NCCL Inspector's files: one JSON object per operation of a communicator's rank.

Fields are from ext-profiler/inspector of NCCL (README.md, json.cc) and of RCCL's port.
"""

from typing import Any

from repro.collectives.definitions import bus_factor, collective_name
from repro.errors import ReproError
from repro.logs.measurements import POINT_TO_POINT, Measurement, Reading, measured
from repro.logs.truncated_json import json_values

SIGN = r'"(?:coll_perf|p2p_perf)"\s*:'
# Times of the host contain the launch, not only the operation.
_HOST_TIME = "collective_cpu"
# Largest relative difference between a printed bandwidth and that of its size and time.
_TOLERANCE = 0.02


def read_nccl_inspector(text: str) -> Reading:
    """Read one file, or several after one another: a measurement per operation and rank.

    The printed size is a rank's part for all-gather and reduce-scatter, so the size by nccl-tests'
    definition is the one that the printed algorithm bandwidth is of. The time includes waiting for
    later ranks; the minimum over repeats is closest to the transfer time.
    """
    rows: list[Measurement] = []
    skipped: list[str] = []
    for place, record in json_values(text, skipped):
        try:
            rows.append(_row(record))
        except (LookupError, TypeError, ValueError, ArithmeticError, ReproError) as problem:
            reason = f"has no {problem}" if isinstance(problem, KeyError) else str(problem)
            skipped.append(f"{place}: {reason}")
    return rows, skipped


def _row(record: Any) -> Measurement:
    header = record["header"]
    kind = "coll" if "coll_perf" in record else "p2p"
    perf = record[f"{kind}_perf"]
    name = collective_name(str(perf[kind]))
    if perf.get(f"{kind}_timing_source") == _HOST_TIME:
        raise ValueError("its time is the host's (collective_cpu)")
    ranks = POINT_TO_POINT if kind == "p2p" else int(header["n_ranks"])
    nodes = int(header["nnodes"]) if "nnodes" in header else None
    if nodes is not None:
        nodes = min(nodes, ranks)
        if nodes < 1:
            raise ValueError(f"{nodes} nodes")
    size = int(perf[f"{kind}_msg_size_bytes"])
    time_us = float(perf[f"{kind}_exec_time_us"])
    printed = float(perf[f"{kind}_algobw_gbs"])
    sizes = {size, size * ranks} if float(bus_factor(name, ranks)) < 1 else {size}
    for candidate in sizes:
        row = measured(name, None, candidate, ranks, time_us, nodes)
        if abs(row.algbw_GBps - printed) <= _TOLERANCE * printed:
            return row
    raise ValueError(f"its bandwidth {printed:g} GB/s is not that of {size} B in {time_us:g} us")
