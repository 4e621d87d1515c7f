"""GPUs by their data sheets (`params/gpus.yaml`)."""

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS


class Gpu(Entry):
    """One schedulable device.

    `peak_flops` is the dense half-precision peak in FLOP/s, `memory_gbytes_per_s` the peak rate of
    its memory in 1e9 B/s, `memory_gb` its size in 1e9 B. `multiprocessors` are what a matrix
    product's tiles are spread over (streaming multiprocessors, compute units).
    """

    label: str
    peak_flops: PositiveFloat
    memory_gbytes_per_s: PositiveFloat
    memory_gb: PositiveFloat
    multiprocessors: PositiveInt
    source: str


def read_gpus() -> dict[str, Gpu]:
    """All GPUs by name, in the order of the file."""
    gpus: dict[str, Gpu] = read_yaml(PARAMS / "gpus.yaml", dict[str, Gpu])
    return gpus


def gpu_labelled(label: str) -> str:
    """The name of the GPU that measurements call by its label; unknown labels as `gpu`."""
    return choose("GPU", label, {entry.label: name for name, entry in read_gpus().items()})


def gpu(name: str) -> Gpu:
    """One GPU by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("GPU", name, read_gpus())
