"""The experiments: what is trained on which cluster, and how thoroughly (`params/<name>.yaml`)."""

from typing import Literal, get_args

from pydantic import NonNegativeInt, PositiveInt, model_validator

from repro.catalog.clusters import read_clusters
from repro.catalog.models import read_models
from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS

ExperimentName = Literal["strong_scaling", "weak_scaling"]


class Profile(Entry):
    """How much of an experiment is run, and how often.

    `warmup` iterations are dropped, `iterations` recorded; a checkpoint is written every
    `save_every` and a validation of `validation_batches` batches run every `validate_every`
    recorded iterations (0: never).
    """

    models: tuple[str, ...]
    gpus: tuple[PositiveInt, ...]
    warmup: PositiveInt
    iterations: PositiveInt
    save_every: NonNegativeInt
    validate_every: NonNegativeInt
    validation_batches: PositiveInt


class Experiment(Entry):
    """Data-parallel training with a batch that is constant in all (strong) or per GPU (weak)."""

    title: str
    source: str
    cluster: str
    global_batch_size: PositiveInt | None = None
    micro_batch_size: PositiveInt | None = None
    profiles: dict[str, Profile]

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        if (self.global_batch_size is None) == (self.micro_batch_size is None):
            raise ValueError("give either global_batch_size (strong) or micro_batch_size (weak)")
        cluster, models = choose("cluster", self.cluster, read_clusters()), read_models()
        for name, profile in self.profiles.items():
            for model in profile.models:
                choose("model", model, models)
            for gpus in profile.gpus:
                if gpus > cluster.topology.gpus:
                    raise ValueError(f"profile {name}: {self.cluster} has no {gpus} GPUs")
                if self.global_batch_size is not None and self.global_batch_size % gpus:
                    raise ValueError(
                        f"profile {name}: global_batch_size {self.global_batch_size} does not "
                        f"divide among {gpus} GPUs"
                    )
        return self

    def micro_batch(self, gpus: int) -> int:
        """Sequences per GPU and iteration; one micro batch each, as in the papers."""
        if self.micro_batch_size is not None:
            return self.micro_batch_size
        assert self.global_batch_size is not None
        return self.global_batch_size // gpus


def experiment(name: str) -> Experiment:
    """Read one experiment by its name."""
    value: Experiment = read_yaml(PARAMS / f"{name}.yaml", Experiment)
    return value


def most_gpus() -> int:
    """The largest number of GPUs in any profile of any experiment: it sets the CPU quota of all."""
    experiments = [experiment(name) for name in get_args(ExperimentName)]
    return max(
        count for e in experiments for profile in e.profiles.values() for count in profile.gpus
    )
