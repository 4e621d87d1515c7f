"""The memory that something takes, on a GPU or of a process: the most, now, and less again."""

import ctypes
from pathlib import Path

import torch

_RESET_PEAK = "5"


def begin_peak() -> int:
    """Begin to look for a new peak; the bytes held now, of the GPU if there is one."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    # proc(5): resets the resident set's high-water mark.
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    return resident_bytes()


def peak_bytes() -> int:
    """The most bytes held since `begin_peak`."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return _status_bytes("VmHWM")


def resident_bytes() -> int:
    """What the process has now, with what it has freed and keeps for later."""
    return _status_bytes("VmRSS")


def give_back() -> None:
    """Return to the system what the process has freed; where the C library can."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
