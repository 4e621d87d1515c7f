"""Recording of a PyTorch profiler trace of operators with their shapes."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def trace_of(step: Callable[[], object], *activities: ProfilerActivity) -> str:
    """Profile one call, and return the text of its trace file.

    `activities` are recorded in addition to the CPU's.
    """
    with profile(activities=[ProfilerActivity.CPU, *activities], record_shapes=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")
