"""The study of hierarchical partitioning (`params/hierarchical_zero.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.parallel.partitions import Scheme
from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.studies.communication import GptModel
from repro.catalog.studies.experiments import ExperimentName
from repro.catalog.systems.topology import Topology
from repro.paths import PARAMS

Overlap = Literal["none", "passes", "all"]
Recompute = Literal["none", "selective", "full"]


class Emulated(Entry):
    """What the testbed trains in every scheme: an experiment's model on GPUs of a topology.

    `iterations` are those recorded, by profile.
    """

    experiment: ExperimentName
    model: str
    gpus: PositiveInt
    micro_batch_size: PositiveInt
    topology: Topology
    warmup: PositiveInt
    iterations: dict[str, PositiveInt]


class Setting(Entry):
    """What a paper may leave open. An iteration of a rank has `micro_batches`.

    Attributes
    ----------
    overlap
        Which collectives are hidden behind computing: none; those of each pass (`passes`); or also
        those of once an iteration (`all`), sums of gradients behind the last backward pass as FSDP2
        hides those between replicas, stepped weights behind the next forward pass as
        Megatron-Core can.
    """

    micro_batch_size: PositiveInt
    micro_batches: PositiveInt
    sequence_length: PositiveInt
    recompute: Recompute
    overlap: Overlap


class Sweeps(Entry):
    """What is predicted: a model in every scheme by GPUs, sweeps of what `base` settles, and a map
    over `link_ratios`, models and numbers of micro batches on the GPUs of `domains`, clusters.
    """

    cluster: str
    model: str
    gpus: tuple[PositiveInt, ...]
    base: Setting
    micro_batch_sizes: tuple[PositiveInt, ...]
    micro_batches: tuple[PositiveInt, ...]
    sequence_lengths: tuple[PositiveInt, ...]
    recomputes: tuple[Recompute, ...]
    overlaps: tuple[Overlap, ...]
    link_ratios: tuple[PositiveFloat, ...]
    map_models: tuple[str, ...]
    map_micro_batches: tuple[PositiveInt, ...]
    domains: dict[str, tuple[PositiveInt, ...]]


class PartitionStudy(Entry):
    """All of it; `schemes` and `models` by name."""

    title: str
    source: str
    schemes: dict[str, Scheme]
    testbed: Emulated
    predicted: Sweeps
    models: dict[str, GptModel]

    def scheme(self, name: str) -> Scheme:
        """One scheme; an unknown name is a `ReproError` that lists the known ones."""
        return choose("scheme", name, self.schemes)


def read_partition_study() -> PartitionStudy:
    """The study's parameters."""
    value: PartitionStudy = read_yaml(PARAMS / "hierarchical_zero.yaml", PartitionStudy)
    return value
