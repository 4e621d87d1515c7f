"""GPUs and their data sheets (`params/gpus.yaml`)."""

import re
from typing import Literal

from pydantic import ConfigDict, PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, choose, read_params
from repro.errors import ReproError

# Blackwell's multiprocessors on cards and in GB10 (compute capability 12) are others than those of
# B200 and B300 (10), with an eighth of their matmul rate.
Generation = Literal[
    "volta",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "blackwell-ultra",
    "blackwell-rtx",
    "cdna2",
    "cdna3",
    "cdna4",
]
# Generations with units for matmuls whose operands have one scale per 32 elements (MX formats).
_SCALED = ("blackwell", "blackwell-ultra", "blackwell-rtx", "cdna4")
# Bytes that processes can use per gigabyte of a data sheet: these are binary, and the driver keeps
# 1 % (measured: 79.18 GiB of an H100's 80, 139.80 GiB of an H200's 141).
MEMORY_GB_BYTES = 0.99 * 2**30
_CHIP = re.compile(r"[a-z]+\d+[a-z]?")
# Words in labels of cards: with a PCIe link alone, and with a bridge between few of them. Other
# GPUs are on boards with links.
_CARDS = {"pcie", "nvl"}
_SIZE = re.compile(r"(\d+)gb?")
# Largest ratio of a size in a name to that of the data sheet: 192 GB are also called 180.
_SAME_SIZE = 1.1
# Words of drivers' and makers' names that say nothing about which GPU it is.
_NEUTRAL = {"", "nvidia", "amd", "instinct", "hbm2", "hbm2e", "hbm3", "hbm3e"}


class Gpu(Entry):
    """One schedulable device.

    `peak_flops` is the dense half-precision peak in FLOP/s; `fp8_flops` and `fp4_flops` are those
    of lower precisions, if it has units for them. `memory_gbytes_per_s` is the peak rate of its
    memory in 1e9 B/s, `memory_gb` the memory size that data sheets state. A matmul's tiles are
    distributed over the `multiprocessors` (streaming multiprocessors, compute units).
    `link_gbytes_per_s` is the rate in each direction of all its links to the `domain_gpus` that
    they join. `nic_gbps` is the rate of its port to other nodes in its maker's systems.
    `published_as` lists its names in measurements.
    """

    model_config = ConfigDict(allow_inf_nan=False)

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
        """Memory that processes can use."""
        return MEMORY_GB_BYTES * self.memory_gb

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions of matmuls that it has units for."""
        units = {
            "bf16": True,
            "fp8": self.fp8_flops,
            "mxfp8": self.generation in _SCALED,
            # AMD's fp4 is MXFP4.
            "nvfp4": self.fp4_flops and not self.generation.startswith("cdna"),
        }
        return tuple(name for name, has in units.items() if has)


def read_gpus() -> dict[str, Gpu]:
    """Read all GPUs by name, in the order of the file."""
    gpus: dict[str, Gpu] = read_params("gpus.yaml", dict[str, Gpu])
    return gpus


def find_gpu_name(device: str) -> str:
    """Return the name of the GPU that a driver or a table calls `device`.

    A match of a name, label or published name wins, without case and marks. Otherwise candidates
    have the same chip and are PCIe cards, NVL cards or neither, as `device` is, and have the memory
    size that it states. The first candidate that shares most words is returned.

    Raises
    ------
    ReproError
        The file has no such GPU.
    """
    gpus = read_gpus()
    for name, entry in gpus.items():
        if _plain(device) in map(_plain, (name, entry.label, *entry.published_as)):
            return name
    chip, words = _CHIP.findall(device.lower().replace("nvidia", ""))[:1], _words(device)
    alike = {
        name: len(words & _words(entry.label))
        for name, entry in gpus.items()
        if chip
        and _CHIP.findall(entry.label.lower())[:1] == chip
        and words & _CARDS == _words(entry.label) & _CARDS
        and all(1 / _SAME_SIZE < size / entry.memory_gb < _SAME_SIZE for size in _sizes_gb(words))
    }
    if not alike:
        raise ReproError(
            f"unknown GPU {device!r}; choose from: {', '.join(gpus)}, or add it to params/gpus.yaml"
        )
    return max(alike, key=lambda name: alike[name])


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("nvidia", ""))


def _sizes_gb(words: set[str]) -> list[int]:
    return [int(found[1]) for found in map(_SIZE.fullmatch, words) if found]


def gpu_named(name: str) -> Gpu:
    """Return the GPU that `name` spells, as `gpu_name` does."""
    return gpu(gpu_name(name))


def gpu_name(name: str) -> str:
    """Return the key of the GPU that `name` spells: all its words are in names of this one only.

    A name that states no kind of card is that of a board, as in tables.

    Raises
    ------
    ReproError
        No GPU has such a name, or several have.
    """
    gpus, words = read_gpus(), _plain_words(name)
    spelled = {
        key: [_plain_words(one) for one in (key, entry.label, *entry.published_as)]
        for key, entry in gpus.items()
    }
    found = [key for key, names in spelled.items() if words in names] or [
        key for key, names in spelled.items() if words and words <= set().union(*names)
    ]
    boards = [key for key in found if not _CARDS & (words | _words(gpus[key].label))]
    if len(found) > 1 and len(boards) == 1:
        return boards[0]
    if len(found) > 1:
        raise ReproError(f"GPU {name!r} is one of several; choose from: {', '.join(found)}")
    return found[0] if found else name


def _plain_words(name: str) -> set[str]:
    """Return the words of a name that tell GPUs apart: no maker, kind of memory or socket's age."""
    return {re.sub(r"^sxm\d$", "sxm", one) for one in _words(name)} - _NEUTRAL


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def gpu(name: str) -> Gpu:
    """Return a GPU by name; an unknown name is a `ReproError` that lists the choices."""
    return choose("GPU", name, read_gpus())
