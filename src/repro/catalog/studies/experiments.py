"""The experiments: what is trained on which cluster, and how thoroughly (`params/<name>.yaml`)."""

from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repro.catalog.models.papers import read_models
from repro.catalog.models.trainable import Trainable, trainable_models
from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.systems.clusters import cluster, read_clusters
from repro.errors import ReproError
from repro.paths import PARAMS

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


@dataclass(frozen=True)
class Batch:
    """Sequences of one iteration over all GPUs, and of one forward pass of one model replica."""

    global_batch_size: int
    micro_batch_size: int


class Profile(Entry):
    """How much of an experiment is run, and how often.

    `values` are those of what the experiment sweeps, ascending. `warmup` iterations are dropped at
    least. Exactly `iterations` are recorded; or, with `most_iterations`, so many at least and that
    many at most, until half of the 95 % interval of their mean is `half_interval` of it. A
    checkpoint is written every `save_every` and a validation of `validation_batches` batches run
    every `validate_every` recorded iterations (0: never).
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

    The batch of an iteration is one of: `global_batch_size` whatever the number of GPUs (strong
    scaling), `sequences_per_gpu` by model (weak scaling), or `micro_batch_size` on every replica.
    What is not given follows: without a `micro_batch_size`, a replica's share of the global batch
    is one micro batch.

    Attributes
    ----------
    pipeline
        Whether models are split into stages (`Model.full_size`), one per GPU unless
        `pipeline_parallel` says how many; the other GPUs are replicas.
    distributed_optimizer
        Whether replicas share the optimizer (ZeRO-1): gradients are reduce-scattered and parameters
        gathered, each with half an all-reduce's bytes.
    protocols
        Those that are run unless others are asked for.
    sweep
        What varies beside the GPUs, over a profile's `values`: a batch size.
    begins
        An experiment that comes next and has configurations in common with this one: they are
        measured once.
    until_out_of_memory
        Whether the sweep goes on until the GPU's memory is full: emulated GPUs have a limit.
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
    begins: ExperimentName | None = None
    profiles: dict[str, Profile]

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        topology = choose("cluster", self.cluster, read_clusters()).topology
        if self.sweep != "global_batch_size":
            if self.global_batch_size and self.sequences_per_gpu:
                raise ValueError("give global_batch_size (strong) or sequences_per_gpu (weak)")
            if self._whole_batch_unknown and not (self.micro_batch_size or self.sweep):
                raise ValueError("give global_batch_size, sequences_per_gpu or micro_batch_size")
        for name, profile in self.profiles.items():
            if bool(profile.values) != (self.sweep is not None):
                raise ValueError(f"profile {name}: values are those of the experiment's sweep")
            if list(profile.values) != sorted(set(profile.values)):
                raise ValueError(f"profile {name}: values have to ascend")
            for model in profile.models:
                choose("model", model, read_models())
            for gpus in profile.gpus:
                if gpus > topology.gpus:
                    raise ValueError(f"profile {name}: {self.cluster} has no {gpus} GPUs")
                for model in profile.models:
                    if not self.batches(model, gpus, profile):
                        raise ValueError(
                            f"profile {name}: the batch of {model} does not divide into micro "
                            f"batches on {gpus} GPUs"
                        )
        return self

    @property
    def models(self) -> dict[str, Trainable]:
        """Those that can be asked for: open ones, which no profile lists, in plain data
        parallelism."""
        plain = not (self.pipeline or self.distributed_optimizer or self.until_out_of_memory)
        return trainable_models() if plain else dict(read_models())

    @property
    def _whole_batch_unknown(self) -> bool:
        return self.global_batch_size is None and self.sequences_per_gpu is None

    def stages(self, gpus: int) -> int:
        """Pipeline stages on so many GPUs; 1 without a pipeline."""
        return (self.pipeline_parallel or gpus) if self.pipeline else 1

    def batch(self, model: str, gpus: int, value: int | None = None) -> Batch:
        """The batch of one configuration; `value` is that of the sweep.

        Raises
        ------
        ReproError
            It does not divide into micro batches, or the GPUs into stages.
        """
        stages = self.stages(gpus)
        if gpus % stages:
            raise ReproError(f"{gpus} GPUs do not divide into pipelines of {stages} stages")
        replicas = gpus // stages
        micro = value if self.sweep == "micro_batch_size" else self.micro_batch_size
        if self.sweep == "global_batch_size" and value is not None:
            whole = value
        elif self.sequences_per_gpu is not None:
            whole = choose("model", model, self.sequences_per_gpu) * gpus
        else:
            whole = self.global_batch_size or (micro or 1) * replicas
        micro = micro or whole // replicas
        if micro == 0 or whole % (micro * replicas):
            raise ReproError(
                f"global_batch_size {whole} of {model} on {gpus} GPUs does not divide into micro "
                f"batches of {max(micro, 1)} on {replicas} replicas"
            )
        return Batch(whole, micro)

    def microbatches(self, batch: Batch, gpus: int) -> int:
        """Forward passes of one replica in one iteration."""
        return batch.global_batch_size * self.stages(gpus) // (gpus * batch.micro_batch_size)

    def batches(self, model: str, gpus: int, profile: Profile) -> dict[int | None, Batch]:
        """Every batch of a profile that divides, by the sweep's value (None: no sweep)."""
        found: dict[int | None, Batch] = {}
        for value in profile.values or (None,):
            try:
                found[value] = self.batch(model, gpus, value)
            except ReproError:
                continue
        return found


def experiment(name: str) -> Experiment:
    """Read one experiment by its name."""
    value: Experiment = read_yaml(PARAMS / f"{name}.yaml", Experiment)
    return value


def most_gpus(cluster_name: str) -> int:
    """The largest number of GPUs in any profile of a cluster's experiments.

    It sets the share of the machine of all of them, so that they share the computing time of a GPU.
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
