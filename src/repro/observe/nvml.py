"""What GPUs' links carried, as NVIDIA's management library (NVML) counts it.

Source: NVML API Reference Guide (Field Value Enums, Change Log) and the comments of `nvml.h`.
NVLink's counters of data, without protocol overhead, are in KiB; scope UINT_MAX asks for all links
of a GPU at once. PCIe's are in bytes, may wrap, and came with driver 555. Older drivers offer a
throughput over 20 ms only, which is no counter: PCIe has no column there.
"""

import errno
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_KIB = 1024
_UINT_MAX = 2**32 - 1
_WRAP = 2**32
# What is counted: the names of its fields (received, sent) in pynvml, their scope and their unit.
_LINKS = (
    (
        "NVLink",
        ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX"),
        _UINT_MAX,
        _KIB,
    ),
    ("PCIe", ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES"), 0, 1),
)


@contextmanager
def gpu_counters() -> Iterator[dict[str, Callable[[], tuple[int, int]]]]:
    """Readers of (received, sent) bytes of each GPU's NVLink and PCIe.

    Keys are `gpu0 NVLink`, `gpu0 PCIe` and so on, in NVML's order, which is that of PCI addresses
    and knows nothing of `CUDA_VISIBLE_DEVICES`. There are none where nvidia-ml-py is not installed
    or no driver answers. A reader raises OSError where the GPU or its driver does not count that,
    or no longer answers.

    A PCIe counter of 32 bits is carried on beyond them, for which it must be read at least once
    every 4 GiB: some 65 ms at the 64 GB/s of 16 lanes of generation 5.
    """
    pynvml = _started()
    try:
        yield _readers(pynvml) if pynvml else {}
    finally:
        if pynvml:
            pynvml.nvmlShutdown()


def _started() -> Any | None:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _readers(pynvml: Any) -> dict[str, Callable[[], tuple[int, int]]]:
    readers = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        for link, names, scope, unit_bytes in _LINKS:
            # A GPU may have fallen off the bus; older releases of pynvml lack names.
            with suppress(pynvml.NVMLError, AttributeError):
                device = pynvml.nvmlDeviceGetHandleByIndex(index)
                fields = [(getattr(pynvml, name), scope) for name in names]
                readers[f"gpu{index} {link}"] = _reader(pynvml, device, fields, unit_bytes)
    return readers


def _reader(
    pynvml: Any, device: Any, fields: list[tuple[int, int]], unit_bytes: int
) -> Callable[[], tuple[int, int]]:
    latest = [0, 0]

    def read() -> tuple[int, int]:
        try:
            values = pynvml.nvmlDeviceGetFieldValues(device, fields)
        except pynvml.NVMLError as error:
            raise OSError(errno.EIO, f"NVML: {error}") from None
        for index, value in enumerate(values):
            latest[index] = _carried_on(latest[index], _number(pynvml, value))
        received, sent = latest
        return unit_bytes * received, unit_bytes * sent

    return read


def _number(pynvml: Any, field: Any) -> int:
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise OSError(errno.EIO, f"NVML: error {field.nvmlReturn} of field {field.fieldId}")
    if field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(field.value.uiVal)
    return int(field.value.ullVal)


def _carried_on(latest: int, number: int) -> int:
    """A counter that falls has wrapped at 32 bits."""
    if number >= latest:
        return number
    return latest + (number - latest) % _WRAP
