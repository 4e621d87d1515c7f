"""GPUs by their data sheets (`params/gpus.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, choose, read_yaml
from repro.errors import ReproError
from repro.paths import PARAMS

Generation = Literal["volta", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4"]
# Generations with units for products whose operands share a scale by 32 elements.
_SCALED = ("blackwell", "cdna4")


class Gpu(Entry):
    """One schedulable device.

    `peak_flops` is the dense half-precision peak in FLOP/s, `fp8_flops` and `fp4_flops` those of
    lower precisions where it has units for them. `memory_gbytes_per_s` is the peak rate of its
    memory in 1e9 B/s, `memory_gb` its size in 1e9 B. `multiprocessors` are what a matrix product's
    tiles are spread over (streaming multiprocessors, compute units). `link_gbytes_per_s` is the
    rate in each direction of all its links to the `domain_gpus` that they join, `nic_gbps` that of
    its port to other nodes in its maker's systems. `published_as` are its names in measurements.
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
    def precisions(self) -> tuple[str, ...]:
        """Of products that it has units for."""
        units = {
            "bf16": True,
            "fp8": self.fp8_flops,
            "mxfp8": self.generation in _SCALED,
            "nvfp4": self.fp4_flops,
        }
        return tuple(name for name, has in units.items() if has)

    def is_called(self, device: str) -> bool:
        """Whether a driver's name of a device has the model that the label begins with."""
        return self.label.partition("-")[0] in device


def read_gpus() -> dict[str, Gpu]:
    """All GPUs by name, in the order of the file."""
    gpus: dict[str, Gpu] = read_yaml(PARAMS / "gpus.yaml", dict[str, Gpu])
    return gpus


def gpu_of_device(device: str) -> str:
    """The name of the GPU that a driver calls so.

    Raises
    ------
    ReproError
        The file has none.
    """
    for name, known in read_gpus().items():
        if known.is_called(device):
            return name
    raise ReproError(f"measured on {device}, which params/gpus.yaml has not: add it")


def gpu_labelled(label: str) -> str:
    """The name of the GPU that measurements call by its label; unknown labels as `gpu`."""
    known = {
        called: name
        for name, entry in read_gpus().items()
        for called in (entry.label, *entry.published_as)
    }
    return choose("GPU", label, known)


def gpu(name: str) -> Gpu:
    """One GPU by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("GPU", name, read_gpus())
