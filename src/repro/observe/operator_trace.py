"""What torch's profiler sees of operators, with their shapes."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def trace_of(step: Callable[[], object], *also: ProfilerActivity) -> str:
    """The trace of one call, as its file would be, of other activities beside the CPU's too."""
    with profile(activities=[ProfilerActivity.CPU, *also], record_shapes=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")
