"""Byte counters of GPUs' NVLink and PCIe links, read by NVIDIA's management library (NVML).

Source: NVML API Reference Guide (Field Value Enums, Change Log) and the comments of `nvml.h`.
NVLink counters are in KiB of data, without protocol overhead; scope UINT_MAX is the sum of all
links of a GPU. PCIe counters are in bytes, may wrap, and need driver 555. Older drivers have only a
throughput over 20 ms, not a counter, so PCIe has no column there.
"""

import errno
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_KIB = 1024
_UINT_MAX = 2**32 - 1
_WRAP = 2**32
# Link, names of its fields (received, sent) in pynvml, scope, and unit in bytes.
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
    """Open readers of (received, sent) bytes of each GPU's NVLink and PCIe.

    Keys are `gpu0 NVLink`, `gpu0 PCIe` and so on, in NVML's order, which is that of PCI addresses
    and ignores `CUDA_VISIBLE_DEVICES`. The mapping is empty if nvidia-ml-py is not installed or the
    driver does not respond. A reader raises OSError if the GPU or its driver has no such counter or
    no longer responds.

    A 32-bit PCIe counter is unwrapped. It must be read at least once every 4 GiB, which is 65 ms at
    the 64 GB/s of 16 lanes of generation 5.
    """
    pynvml = _initialized_nvml()
    try:
        yield _readers(pynvml) if pynvml else {}
    finally:
        if pynvml:
            pynvml.nvmlShutdown()


def _initialized_nvml() -> Any | None:
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
            latest[index] = _unwrap(latest[index], _number(pynvml, value))
        received, sent = latest
        return unit_bytes * received, unit_bytes * sent

    return read


def _number(pynvml: Any, field: Any) -> int:
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise OSError(errno.EIO, f"NVML: error {field.nvmlReturn} of field {field.fieldId}")
    if field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(field.value.uiVal)
    return int(field.value.ullVal)


def _unwrap(latest: int, number: int) -> int:
    """Continue a counter beyond 32 bits: one that decreases has wrapped."""
    if number >= latest:
        return number
    return latest + (number - latest) % _WRAP
