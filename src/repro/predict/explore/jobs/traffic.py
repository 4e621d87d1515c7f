"""Communication volumes of a plan by group, topology level and phase (`repro traffic`)."""

from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.models.papers import Shape
from repro.catalog.parallel.communication_volumes import Calls, step_communication
from repro.catalog.parallel.layouts import Layout
from repro.catalog.systems.topology import Topology
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError

_BY = ["group", "ranks", "level", "phase", "operation"]


def traffic(shape: Shape, layout: Layout, topology: Topology) -> pd.DataFrame:
    """Count the bytes of one iteration in half precision by group, level, phase and operation.

    Ranks fill the nodes of the topology in Megatron-Core's order: tensor-parallel ranks are
    neighbours, then come context-parallel ranks, replicas and stages.

    Returns
    -------
    DataFrame
        `group` and its number of `ranks`; the `level` that it spans, for messages that of a rank
        and both its neighbours; `calls` and `sent_bytes` of the rank that sends most, by the bus
        factor of nccl-tests; `smallest_bytes` and `largest_bytes` of a call; `total_bytes` that all
        ranks send. Receives are left out, because their sends are counted.

    Raises
    ------
    ReproError
        The plan does not divide, or the topology has fewer GPUs.
    """
    layout.check(shape)
    if layout.ranks > topology.gpus:
        raise ReproError(
            f"the plan takes {layout.ranks} GPUs (tp x cp x dp x pp), the cluster has "
            f"{topology.gpus}; choose another plan or cluster"
        )
    sizes = ("pipeline_parallel", "data_parallel", "context_parallel", "tensor_parallel")
    numbers = np.arange(layout.ranks).reshape([getattr(layout, name) for name in sizes])
    calls = [step_communication(shape, layout, stage, 2, 2) for stage in range(len(numbers))]
    rows = [
        {
            "rank": numbers[place],
            "group": one.role,
            "level": topology.lowest_common_level(_members(one.role, numbers, place, layout)),
            **vars(one),
            "sent_bytes": sent_bytes(one),
        }
        for place in np.ndindex(numbers.shape)
        for one in calls[place[0]]
        if one.operation != "recv"
    ]
    columns = ["rank", *_BY, "size_bytes", "calls", "sent_bytes"]
    by_rank = pd.DataFrame(rows, columns=columns).groupby([*_BY, "rank"], sort=False)
    of_rank = by_rank.agg(
        calls=("calls", "sum"),
        smallest_bytes=("size_bytes", "min"),
        largest_bytes=("size_bytes", "max"),
        sent_bytes=("sent_bytes", "sum"),
    )
    found = of_rank.groupby(_BY, sort=False).agg(
        calls=("calls", "max"),
        smallest_bytes=("smallest_bytes", "min"),
        largest_bytes=("largest_bytes", "max"),
        sent_bytes=("sent_bytes", "max"),
        total_bytes=("sent_bytes", "sum"),
    )
    return found.reset_index()


def sent_bytes(one: Calls) -> float:
    """Return the bytes that a rank sends in calls, by nccl-tests' bus factor; 0 for receives."""
    if one.operation == "recv":
        return 0.0
    name = "send_recv" if one.operation == "send" else one.operation
    return float(bus_factor(name, one.ranks)) * one.size_bytes * one.calls


def _members(
    role: str, numbers: np.ndarray[Any, Any], place: tuple[int, ...], layout: Layout
) -> list[int]:
    """Return the ranks of a rank's group; of a pipeline, the rank and its neighbours."""
    stage, replica, context, part = place
    stages, every = len(numbers), slice(None)
    # With several chunks the last stage sends to the first.
    beside = {
        other % stages
        for other in (stage - 1, stage, stage + 1)
        if layout.virtual_stages > 1 or 0 <= other < stages
    }
    chosen: dict[str, tuple[Any, ...]] = {
        "pipeline": (list(beside), replica, context, part),
        "tensor": (stage, replica, context, every),
        "context": (stage, replica, every, part),
        "data": (stage, every, every, part),
        "embedding": ([0, stages - 1], replica, context, part),
        "optimizer": (every,) * 4 if layout.zero else (every, replica, context, every),
    }
    return [int(number) for number in np.ravel(numbers[chosen[role]])]


def traffic_table(found: pd.DataFrame) -> str:
    """Format the result of `traffic` as text."""
    if found.empty:
        return "nothing is communicated: every group has one rank"
    size = [
        _written(small) if small == large else f"{_written(small)} to {_written(large)}"
        for small, large in zip(found.smallest_bytes, found.largest_bytes, strict=True)
    ]
    shown = found[[*_BY, "calls"]].assign(
        size=size,
        sent_per_rank=found.sent_bytes.map(_written),
        sent_by_all=found.total_bytes.map(_written),
    )
    return shown.to_string(index=False)


def _written(size_bytes: float) -> str:
    """Format bytes with a unit in powers of 1000."""
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.4g} TB"
