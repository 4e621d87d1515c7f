"""Study of hierarchical partitioning (`params/hierarchical_zero.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.parallel.partitions import Scheme
from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.studies.communication import GptModel
from repro.catalog.studies.experiments import ExperimentName
from repro.catalog.systems.topology import Topology

Overlap = Literal["none", "passes", "all"]
Recompute = Literal["none", "selective", "full"]


class EmulatedRuns(Entry):
    """Testbed training in every scheme: an experiment's model on GPUs of a topology.

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
    """Settings that a paper may not state. An iteration of a rank has `micro_batches`.

    Attributes
    ----------
    overlap
        Collectives that overlap with compute: none; those of each pass (`passes`); or also those of
        once per iteration (`all`). With `all`, gradient sums overlap with the last backward pass,
        as FSDP2 overlaps those between replicas. Stepped weights overlap with the next forward
        pass, as Megatron-Core can.
    """

    micro_batch_size: PositiveInt
    micro_batches: PositiveInt
    sequence_length: PositiveInt
    recompute: Recompute
    overlap: Overlap


class Sweeps(Entry):
    """Predictions: a model in every scheme by GPUs, sweeps around `base`, and a map.

    The map has `link_ratios`, models and numbers of micro batches on the GPUs of `domains`, which
    are clusters.
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
    """Parameters of the study; `schemes` and `models` are by name."""

    title: str
    source: str
    schemes: dict[str, Scheme]
    testbed: EmulatedRuns
    predicted: Sweeps
    models: dict[str, GptModel]

    def scheme(self, name: str) -> Scheme:
        """Return a scheme by name; an unknown name is a `ReproError` that lists the choices."""
        return choose("scheme", name, self.schemes)


def read_partition_study() -> PartitionStudy:
    """Read the parameters of the study."""
    value: PartitionStudy = read_params("hierarchical_zero.yaml", PartitionStudy)
    return value
