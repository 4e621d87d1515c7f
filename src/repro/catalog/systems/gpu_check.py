"""Checks of data sheets of GPUs: usual mistakes, found by ratios to what a generation can do."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from repro.catalog.reading import read_yaml
from repro.catalog.systems.gpus import Generation, Gpu, find_gpu_name, read_gpus
from repro.errors import ReproError


@dataclass(frozen=True)
class _Usual:
    """Limits of a generation.

    Attributes
    ----------
    cycle_flops
        Dense half-precision FLOPs of a multiprocessor per cycle.
    clock_ghz
        Highest clock of its products.
    link
        Highest rate of all links of a GPU in one direction, in GB/s.
    pcie
        Rate of its PCIe x16 link in one direction, in GB/s.
    nic_gbps
        Fastest port per GPU in its makers' systems.
    precisions
        Times of the half-precision peak that units for fp8 and fp4 may have.
    """

    cycle_flops: int
    clock_ghz: float
    link: float
    pcie: float
    nic_gbps: float
    precisions: Mapping[str, tuple[int, ...]]


_FP8, _FP4 = {"fp8_flops": (2,)}, {"fp8_flops": (2,), "fp4_flops": (4,)}
# Makers' whitepapers. B300 has six times as many fp4 as half-precision units, B200 four times.
_GENERATIONS: Mapping[Generation, _Usual] = {
    "volta": _Usual(1024, 1.6, 150, 15.75, 100, {}),
    "ampere": _Usual(2048, 1.75, 300, 31.5, 200, {}),
    "ada": _Usual(1024, 2.6, 31.5, 31.5, 400, _FP8),
    "hopper": _Usual(4096, 2.0, 450, 63, 400, _FP8),
    "blackwell": _Usual(8192, 2.1, 900, 63, 800, {**_FP8, "fp4_flops": (4,)}),
    "blackwell-ultra": _Usual(8192, 2.1, 900, 63, 800, {**_FP8, "fp4_flops": (6,)}),
    "blackwell-rtx": _Usual(1024, 2.7, 63, 63, 400, _FP4),
    "cdna2": _Usual(1024, 1.7, 350, 31.5, 200, {}),
    "cdna3": _Usual(2048, 2.1, 448, 63, 400, _FP8),
    "cdna4": _Usual(4096, 2.4, 537.6, 63, 400, _FP4),
}
_CARDS_ONLY = ("ada", "blackwell-rtx")
# Values may be this much above a limit, as data sheets round.
_ROUNDING = 1.06
_LOWEST_CLOCK_GHZ = 0.3
_LEAST_FLOPS = 1e13
_MOST_MEMORY_GB = 1024.0
_MOST_NIC_GBPS = 1600.0
_LEAST_GBYTES_PER_S = 30.0
# Shortest time in which a GPU's memory is read once; the longest is that of LPDDR memory.
_FASTEST_READ_S = 0.01
# Cards that a bridge joins.
_BRIDGED, _BRIDGED_NVL = 2, 4
_COMPARED = ("peak_flops", "fp8_flops", "fp4_flops", "memory_gbytes_per_s", "link_gbytes_per_s")
_NEAREST = ("peak_flops", "memory_gbytes_per_s", "memory_gb", "link_gbytes_per_s")
# Field, what is expected, and how to correct it.
_Finding = tuple[str, str, str]


def read_gpu_sheet(path: Path) -> Gpu:
    """Read a data sheet, whose keys are the fields of `Gpu`, and check it.

    Raises
    ------
    ReproError
        The file is missing or not valid, or a value is implausible; the message names the field.
    """
    sheet = parse_gpu_sheet(path)
    if found := implausible(sheet):
        more = f" ({len(found) - 1} more: repro gpu-spec {path})" if found[1:] else ""
        raise ReproError(f"{path}: {found[0]}{more}")
    return sheet


def parse_gpu_sheet(path: Path) -> Gpu:
    """Read a data sheet without checking its values.

    Raises
    ------
    ReproError
        The file is missing, a key is missing or unknown, or a value is of another type.
    """
    if not path.is_file():
        raise ReproError(f"{path}: no such file; fix: give the path of a data sheet (YAML)")
    sheet: Gpu = read_yaml(path, Gpu)
    return sheet


def implausible(sheet: Gpu) -> list[str]:
    """Return a line per implausible field: its value, what is expected, and a fix."""
    usual = _GENERATIONS[sheet.generation]
    found: dict[str, str] = {}
    for check in (_peaks, _precisions, _memory, _links, _nic):
        for field, expected, fix in check(sheet, usual):
            found.setdefault(field, _line(sheet, field, expected, fix))
    for field, expected, fix in _unlike_catalogued(sheet):
        found.setdefault(field, _line(sheet, field, expected, fix))
    return list(found.values())


def _line(sheet: Gpu, field: str, expected: str, fix: str) -> str:
    return f"{field} is {getattr(sheet, field):.6g}; {expected}; fix: {fix}"


def nearest_gpu(sheet: Gpu) -> str:
    """Return the catalogued GPU of the generation whose peak, memory and links differ least."""

    def distance(name: str) -> float:
        other = gpus[name]
        return sum(
            abs(math.log(getattr(sheet, field) / getattr(other, field))) for field in _NEAREST
        )

    gpus = read_gpus()
    alike = [name for name, other in gpus.items() if other.generation == sheet.generation]
    return min(alike, key=distance)


def _peaks(sheet: Gpu, usual: _Usual) -> Iterator[_Finding]:
    """Find peaks that need an impossible clock."""
    most = _ROUNDING * usual.clock_ghz
    for field, times in {"peak_flops": (1,), **usual.precisions}.items():
        peak = getattr(sheet, field)
        if peak is None:
            continue
        clock = peak / (sheet.multiprocessors * usual.cycle_flops * max(times)) / 1e9
        if peak < _LEAST_FLOPS:
            yield field, "expected is FLOP/s, not TFLOP/s", f"{peak:g}e+12"
        elif clock > most:
            half = f"the dense peak of one GPU, such as {peak / 2:.6g}, not the sparse one"
            yield (
                field,
                f"{sheet.multiprocessors} multiprocessors would need {clock:.2f} GHz, and "
                f"{sheet.generation} has at most {usual.clock_ghz:g} GHz",
                half if clock / 2 <= most else "the dense peak of one GPU",
            )
        elif field == "peak_flops" and clock < _LOWEST_CLOCK_GHZ:
            yield (
                "multiprocessors",
                f"the peak would need {clock:.3f} GHz, expected is {_LOWEST_CLOCK_GHZ:g} GHz or "
                "more",
                "the number of streaming multiprocessors or compute units, not of cores",
            )


def _precisions(sheet: Gpu, usual: _Usual) -> Iterator[_Finding]:
    """Find peaks of lower precisions that are no multiple of the half-precision peak."""
    for field in ("fp8_flops", "fp4_flops"):
        peak = getattr(sheet, field)
        if peak is None:
            continue
        if field not in usual.precisions:
            yield field, f"{sheet.generation} has no units for it", "omit it"
            continue
        times, ratio = usual.precisions[field], peak / sheet.peak_flops
        if not any(1 / _ROUNDING < ratio / one < _ROUNDING for one in times):
            expected = " or ".join(map(str, times))
            yield (
                field,
                f"{ratio:.3g} times peak_flops, expected is {expected} times",
                f"the dense peak in each of them, such as {times[0] * sheet.peak_flops:.6g} here",
            )


def _memory(sheet: Gpu, _: _Usual) -> Iterator[_Finding]:
    """Find sizes and rates of the memory in other units."""
    size, rate = sheet.memory_gb, sheet.memory_gbytes_per_s
    if size > _MOST_MEMORY_GB:
        in_bytes = size > 1e6
        unit, gib = ("bytes", size / 2**30) if in_bytes else ("MiB", size / 1024)
        yield "memory_gb", f"expected is GiB, not {unit}", f"{gib:.3g}"
    if rate < _LEAST_GBYTES_PER_S:
        yield "memory_gbytes_per_s", "expected is GB/s, not TB/s", f"{1000 * rate:.6g}"
    elif size <= _MOST_MEMORY_GB and size / rate < _FASTEST_READ_S:
        yield (
            "memory_gbytes_per_s",
            f"{size:g} GB would be read in {1000 * size / rate:.2g} ms, expected are "
            f"{1000 * _FASTEST_READ_S:g} ms or more",
            f"GB/s, not Gbit/s, such as {rate / 8:.6g}",
        )


def _links(sheet: Gpu, usual: _Usual) -> Iterator[_Finding]:
    """Find rates of links in both directions, in other units, and of other boards."""
    field, rate = "link_gbytes_per_s", sheet.link_gbytes_per_s
    words = set(re.split(r"[^a-z0-9]+", sheet.label.lower()))
    card = "pcie" in words or "nvl" in words or sheet.generation in _CARDS_ONLY
    bridged = _BRIDGED_NVL if "nvl" in words else _BRIDGED
    over_pcie, over_links = rate / usual.pcie, rate / usual.link
    if over_links < 0.01 and rate < 2:
        yield field, "expected is GB/s in one direction, not TB/s", f"{1000 * rate:.6g}"
    elif card and _ROUNDING < over_pcie <= 2 * _ROUNDING:
        yield (
            field,
            f"a PCIe x16 link has {usual.pcie:g} GB/s in one direction, twice that in both",
            f"{usual.pcie:g}",
        )
    elif card and over_pcie > _ROUNDING and sheet.domain_gpus > bridged:
        yield (
            field,
            f"a card's PCIe link has {usual.pcie:g} GB/s, and a bridge joins {bridged} cards",
            f"{usual.pcie:g}, or domain_gpus {bridged}",
        )
    elif over_links > _ROUNDING:
        yield (
            field,
            f"all links of a {sheet.generation} GPU have at most {usual.link:g} GB/s in one "
            "direction, twice that in both",
            f"the rate of one direction of one GPU, such as {min(rate / 2, usual.link):.6g}",
        )
    elif over_pcie <= _ROUNDING and any(one.startswith("sxm") for one in words):
        yield (
            field,
            f"that is PCIe's rate, and an SXM board has NVLink of up to {usual.link:g} GB/s",
            f"{usual.link:g}, or the label of the PCIe card",
        )


def _nic(sheet: Gpu, usual: _Usual) -> Iterator[_Finding]:
    """Find rates of NICs in GB/s, and sums over a node."""
    rate = sheet.nic_gbps
    if 8 * rate <= usual.nic_gbps:
        yield "nic_gbps", "expected is Gbit/s of a GPU's port, not GB/s", f"{8 * rate:.6g}"
    elif rate > _MOST_NIC_GBPS:
        yield (
            "nic_gbps",
            f"a GPU's port has at most {_MOST_NIC_GBPS:g} Gbit/s",
            f"the rate of a node's NICs over its GPUs, such as {rate / 8:.6g}",
        )


def _unlike_catalogued(sheet: Gpu) -> Iterator[_Finding]:
    """Find values that are a power of two times those of the catalogued GPU of that label."""
    try:
        name = find_gpu_name(sheet.label)
    except ReproError:
        return
    known = read_gpus()[name]
    for field in _COMPARED:
        mine, other = getattr(sheet, field), getattr(known, field)
        if mine is None or other is None:
            continue
        times = 2 ** round(math.log2(mine / other))
        if times != 1 and 1 / _ROUNDING < mine / other / times < _ROUNDING:
            yield field, f"{name} has {other:.6g}", f"{other:.6g}, or a label of its own"
