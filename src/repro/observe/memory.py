"""Memory use of the GPU or of this process: current, peak, and release of freed memory."""

import ctypes
from pathlib import Path

import torch

_RESET_PEAK = "5"


def reset_peak() -> int:
    """Reset the peak, and return the bytes in use now, on the GPU if there is one."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    # proc(5): writing "5" resets the peak resident set size.
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    return resident_bytes()


def peak_bytes() -> int:
    """Return the peak of the bytes in use since `reset_peak`."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return _status_bytes("VmHWM")


def resident_bytes() -> int:
    """Return the resident set size, including memory that is freed but kept by the allocator."""
    return _status_bytes("VmRSS")


def trim_heap() -> None:
    """Return freed memory to the system, if the C library has `malloc_trim`."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(
        f"/proc/self/status has no {field}; fix: run on a Linux kernel that reports it"
    )
