"""Experiments: trained models, their cluster, batches and profiles (`params/<name>.yaml`)."""

from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repro.catalog.models.papers import read_models
from repro.catalog.models.trainable import Trainable, trainable_models
from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.systems.clusters import cluster, read_clusters
from repro.errors import ReproError

ExperimentName = Literal[
    "strong_scaling",
    "weak_scaling",
    "model_parallelism",
    "micro_batches",
    "data_batches",
    "pipeline_batches",
    "cluster_b",
    "gpt350m",
]
EXPERIMENTS: tuple[ExperimentName, ...] = get_args(ExperimentName)
Swept = Literal["global_batch_size", "micro_batch_size"]
SWEPT: tuple[str, ...] = get_args(Swept)


@dataclass(frozen=True)
class Batch:
    """Sequences per iteration over all GPUs, and per forward pass of one model replica."""

    global_batch_size: int
    micro_batch_size: int


class Profile(Entry):
    """Models, GPUs and iterations of an experiment.

    `values` are those of the experiment's sweep, ascending. At least `warmup` iterations are
    dropped. Exactly `iterations` are recorded; or, with `most_iterations`, between `iterations` and
    `most_iterations`, until half of the 95 % interval of their mean is `half_interval` of it. A
    checkpoint is written every `save_every` recorded iterations, and `validation_batches` batches
    are validated every `validate_every` (0: never).
    """

    models: tuple[str, ...]
    gpus: tuple[PositiveInt, ...]
    values: tuple[PositiveInt, ...] = ()
    warmup: PositiveInt
    iterations: PositiveInt
    most_iterations: PositiveInt | None = None
    half_interval: PositiveFloat = 0.02
    save_every: NonNegativeInt = 0
    validate_every: NonNegativeInt = 0
    validation_batches: PositiveInt = 1


class Experiment(Entry):
    """Training on 2, 4, ... GPUs of a cluster: data parallel, in pipelines, or both.

    The batch of an iteration is one of: `global_batch_size` for any number of GPUs (strong
    scaling), `sequences_per_gpu` by model (weak scaling), or `micro_batch_size` on every replica.
    Without a `micro_batch_size`, each replica's part of the global batch is one micro batch.

    Attributes
    ----------
    pipeline
        Whether models are split into stages (`Model.full_size`), one per GPU unless
        `pipeline_parallel` is given; the remaining GPUs are replicas.
    distributed_optimizer
        Whether replicas shard the optimizer (ZeRO-1): gradients are reduce-scattered and parameters
        gathered, each with half an all-reduce's bytes.
    protocols
        Protocols that run by default.
    sweep
        Batch size that varies in addition to the GPUs, over a profile's `values`.
    until_out_of_memory
        Whether the sweep continues until the GPU's memory is full: emulated GPUs have a limit.
    """

    title: str
    source: str
    cluster: str
    pipeline: bool = False
    pipeline_parallel: PositiveInt | None = None
    distributed_optimizer: bool = False
    protocols: tuple[str, ...] = ("rdma", "ipoib", "tcp")
    global_batch_size: PositiveInt | None = None
    sequences_per_gpu: dict[str, PositiveInt] | None = None
    micro_batch_size: PositiveInt | None = None
    sweep: Swept | None = None
    until_out_of_memory: bool = False
    profiles: dict[str, Profile]

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        topology = choose("cluster", self.cluster, read_clusters()).topology
        if self.sweep != "global_batch_size":
            if self.global_batch_size and self.sequences_per_gpu:
                raise ValueError("global_batch_size and sequences_per_gpu are set; fix: remove one")
            if self._no_global_batch and not (self.micro_batch_size or self.sweep):
                raise ValueError("give global_batch_size, sequences_per_gpu or micro_batch_size")
        for name, profile in self.profiles.items():
            if bool(profile.values) != (self.sweep is not None):
                raise ValueError(f"profile {name}: set both values and sweep, or neither")
            if list(profile.values) != sorted(set(profile.values)):
                raise ValueError(f"profile {name}: values do not ascend; fix: sort them")
            for model in profile.models:
                choose("model", model, read_models())
            for gpus in profile.gpus:
                if gpus > topology.gpus:
                    raise ValueError(
                        f"profile {name}: {self.cluster} has {topology.gpus} GPUs, not {gpus}"
                    )
                for model in profile.models:
                    if not self.batches(model, gpus, profile):
                        raise ValueError(
                            f"profile {name}: the batch of {model} does not divide into micro "
                            f"batches on {gpus} GPUs; fix: change batch, stages or GPUs"
                        )
        return self

    @property
    def models(self) -> dict[str, Trainable]:
        """Models by name; open-weight ones, which no profile lists, in plain data parallelism."""
        plain = not (self.pipeline or self.distributed_optimizer or self.until_out_of_memory)
        return trainable_models() if plain else dict(read_models())

    @property
    def _no_global_batch(self) -> bool:
        return self.global_batch_size is None and self.sequences_per_gpu is None

    def stages(self, gpus: int) -> int:
        """Return the number of pipeline stages on this many GPUs; 1 without a pipeline."""
        return (self.pipeline_parallel or gpus) if self.pipeline else 1

    def batch(self, model: str, gpus: int, value: int | None = None) -> Batch:
        """Return the batch of one configuration; `value` is that of the sweep.

        Raises
        ------
        ReproError
            The batch does not divide into micro batches, or the GPUs into stages.
        """
        stages = self.stages(gpus)
        if gpus % stages:
            raise ReproError(f"{gpus} GPUs do not divide into pipelines of {stages} stages")
        replicas = gpus // stages
        micro = value if self.sweep == "micro_batch_size" else self.micro_batch_size
        if self.sweep == "global_batch_size" and value is not None:
            global_batch = value
        elif self.sequences_per_gpu is not None:
            global_batch = choose("model", model, self.sequences_per_gpu) * gpus
        else:
            global_batch = self.global_batch_size or (micro or 1) * replicas
        micro = micro or global_batch // replicas
        if micro == 0 or global_batch % (micro * replicas):
            raise ReproError(
                f"global_batch_size {global_batch} of {model} on {gpus} GPUs does not divide into "
                f"micro batches of {max(micro, 1)} on {replicas} replicas; fix: choose a multiple"
            )
        return Batch(global_batch, micro)

    def microbatches(self, batch: Batch, gpus: int) -> int:
        """Return the forward passes of one replica in one iteration."""
        return batch.global_batch_size * self.stages(gpus) // (gpus * batch.micro_batch_size)

    def batches(self, model: str, gpus: int, profile: Profile) -> dict[int | None, Batch]:
        """Return the batches of a profile that divide, by the sweep's value (None: no sweep)."""
        found: dict[int | None, Batch] = {}
        for value in profile.values or (None,):
            try:
                found[value] = self.batch(model, gpus, value)
            except ReproError:
                continue
        return found


def experiment(name: str) -> Experiment:
    """Read an experiment by its name."""
    value: Experiment = read_params(f"{name}.yaml", Experiment)
    return value


def most_gpus(cluster_name: str) -> int:
    """Return the largest number of GPUs in any profile of a cluster's experiments.

    It determines the CPU fraction of each emulated GPU, so all these experiments compute equally
    fast.
    """
    topology = cluster(cluster_name).topology
    experiments = [experiment(name) for name in EXPERIMENTS]
    return max(
        (
            gpus
            for entry in experiments
            if entry.cluster == cluster_name
            for profile in entry.profiles.values()
            for gpus in profile.gpus
        ),
        default=topology.gpus,
    )
