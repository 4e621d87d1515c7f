"""GPUs by their data sheets (`params/gpus.yaml`)."""

import re
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, choose, read_yaml
from repro.errors import ReproError
from repro.paths import PARAMS

Generation = Literal["volta", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"]
# Generations with units for products whose operands share a scale by 32 elements.
_SCALED = ("blackwell", "cdna4")
# What processes have of a gigabyte of a data sheet's memory: it is binary, and the driver keeps a
# hundredth (measured: 79.18 GiB of an H100's 80, 139.80 of an H200's 141).
MEMORY_GB_BYTES = 0.99 * 2**30
_CHIP = re.compile(r"[a-z]+\d+[a-z]?")
# Others sit on boards of several, whose links they have.
_CARD = "pcie"


class Gpu(Entry):
    """One schedulable device.

    `peak_flops` is the dense half-precision peak in FLOP/s, `fp8_flops` and `fp4_flops` those of
    lower precisions where it has units for them. `memory_gbytes_per_s` is the peak rate of its
    memory in 1e9 B/s, `memory_gb` its size as data sheets have it. `multiprocessors` are what a
    matrix product's tiles are spread over (streaming multiprocessors, compute units).
    `link_gbytes_per_s` is the rate in each direction of all its links to the `domain_gpus` that
    they join, `nic_gbps` that of its port to other nodes in its maker's systems. `published_as` are
    its names in measurements.
    """

    label: str
    published_as: tuple[str, ...] = ()
    generation: Generation
    peak_flops: PositiveFloat
    fp8_flops: PositiveFloat | None = None
    fp4_flops: PositiveFloat | None = None
    memory_gbytes_per_s: PositiveFloat
    memory_gb: PositiveFloat
    multiprocessors: PositiveInt
    link_gbytes_per_s: PositiveFloat
    domain_gpus: PositiveInt = 8
    nic_gbps: PositiveFloat
    source: str

    @property
    def memory_bytes(self) -> float:
        """What its memory has for processes."""
        return MEMORY_GB_BYTES * self.memory_gb

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of products that it has units for."""
        units = {
            "bf16": True,
            "fp8": self.fp8_flops,
            "mxfp8": self.generation in _SCALED,
            "nvfp4": self.fp4_flops,
        }
        return tuple(name for name, has in units.items() if has)


def read_gpus() -> dict[str, Gpu]:
    """All GPUs by name, in the order of the file."""
    gpus: dict[str, Gpu] = read_yaml(PARAMS / "gpus.yaml", dict[str, Gpu])
    return gpus


def gpu_called(device: str) -> str:
    """The name of the GPU that a driver or a table calls so: by its own names, or of those with
    that chip, on a card or not, the one that has most of the words, such as its memory; the first
    of several.

    Raises
    ------
    ReproError
        The file has none.
    """
    known = read_gpus()
    for name, entry in known.items():
        if device in (name, entry.label, *entry.published_as):
            return name
    chip, words = _CHIP.findall(device.lower().replace("nvidia", ""))[:1], _words(device)
    alike = {
        name: len(words & _words(entry.label))
        for name, entry in known.items()
        if chip
        and _CHIP.findall(entry.label.lower())[:1] == chip
        and (_CARD in words) == (_CARD in _words(entry.label))
    }
    if not alike:
        raise ReproError(
            f"unknown GPU {device!r}; choose from: {', '.join(known)}, or add it to "
            "params/gpus.yaml"
        )
    return max(alike, key=lambda name: alike[name])


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def gpu(name: str) -> Gpu:
    """One GPU by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("GPU", name, read_gpus())
