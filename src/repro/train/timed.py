"""CPU time of single calls on one thread, by PyTorch's benchmark harness."""

import time
from collections.abc import Callable
from typing import Any

from torch.utils.benchmark import Timer


def cpu_s(call: Callable[..., object], *operands: Any, total_s: float = 1e-3) -> float:
    """Return the CPU time of a call on one thread, in seconds.

    It is the median over calls that take `total_s` together. CPU time leaves out other processes.
    """
    timer = Timer(
        "call(*operands)",
        timer=time.process_time,
        globals={"call": call, "operands": operands},
        num_threads=1,
    )
    return float(timer.blocked_autorange(min_run_time=total_s).median)
