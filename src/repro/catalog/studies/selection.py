"""Which part of an experiment to run: the parameters of a notebook, checked once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from repro.catalog.models.open_models import OpenModel
from repro.catalog.reading import choose
from repro.catalog.studies.experiments import Batch, Experiment, Profile, experiment
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import read_transports
from repro.errors import ReproError

T = TypeVar("T")

SOURCES = ("paper", "reference", "predicted", "testbed", "cluster")


@dataclass(frozen=True)
class Selection:
    """A checked part of an experiment."""

    name: str
    experiment: Experiment
    profile_name: str
    profile: Profile
    source: str
    protocols: tuple[str, ...]
    models: tuple[str, ...]
    gpus: tuple[int, ...]

    def batches(self, model: str, gpus: int) -> dict[int | None, Batch]:
        """The batches of one model, by the value of what is swept (None: nothing is)."""
        return self.experiment.batches(model, gpus, self.profile)

    def micro_batch_sizes(self, model: str) -> set[int]:
        """Those of all batches of one model, on any number of GPUs."""
        return {
            batch.micro_batch_size
            for gpus in self.gpus
            for batch in self.batches(model, gpus).values()
        }

    @property
    def label(self) -> str:
        """A name for files that tells it from other selections."""
        parts = [
            self.name,
            self.source,
            self.profile_name,
            "+".join(self.protocols),
            "+".join(self.models),
            "+".join(str(count) for count in self.gpus),
        ]
        if self.experiment.pipeline_parallel:
            parts.append(f"{self.experiment.pipeline_parallel}stages")
        if self.experiment.pipeline and self.experiment.micro_batch_size:
            parts.append(f"micro{self.experiment.micro_batch_size}")
        return "-".join(parts)


def select(
    name: str,
    source: str = "testbed",
    protocol: str = "all",
    models: str | Sequence[str] = "all",
    gpus: str | int | Sequence[int] = "all",
    profile: str = "default",
    micro_batch_size: int | None = None,
    pipeline_parallel: int | None = None,
) -> Selection:
    """Check a notebook's parameters.

    Parameters
    ----------
    name : str
        The experiment: a file of `params/`.
    source : str
        One of `SOURCES`.
    protocol : str
        `rdma`, `ipoib`, `tcp`, or `all` of the experiment's; on real nodes (source `cluster`) any
        of params/protocols.yaml.
    models, gpus
        `all` of the profile's; one; several separated by commas; or a sequence. Models may also be
        open ones that can be trained so.
    profile : str
        A profile of the experiment.
    micro_batch_size, pipeline_parallel
        Replace the experiment's; None leaves them.

    Raises
    ------
    ReproError
        A value is unknown, and the message says which values are known; or batch, GPUs and stages
        do not divide.
    """
    chosen = _changed(experiment(name), micro_batch_size, pipeline_parallel)
    wanted = choose("profile", profile, chosen.profiles)
    known = dict.fromkeys((*chosen.protocols, *cluster(chosen.cluster).protocols))
    if source == "cluster":
        known |= dict.fromkeys(read_transports())
    return Selection(
        name,
        chosen,
        profile,
        wanted,
        choose("source", source, {known: known for known in SOURCES}),
        choose("protocol", protocol, {**{p: (p,) for p in known}, "all": chosen.protocols}),
        wanted.models if models == "all" else pick("model", models, _models(chosen, wanted)),
        pick("number of GPUs", gpus, {str(count): count for count in wanted.gpus}),
    )


def _models(chosen: Experiment, wanted: Profile) -> dict[str, str]:
    """A profile's models, and open ones, which are in none."""
    others = [name for name, one in chosen.models.items() if isinstance(one, OpenModel)]
    return {name: name for name in (*wanted.models, *others)}


def _changed(chosen: Experiment, micro_batch_size: int | None, stages: int | None) -> Experiment:
    """An experiment with another micro batch or number of stages, as sound as one from a file."""
    asked = {"micro_batch_size": micro_batch_size, "pipeline_parallel": stages}
    changes = {name: value for name, value in asked.items() if value is not None}
    if not changes:
        return chosen
    if chosen.sweep in changes:
        raise ReproError(f"{chosen.sweep} {changes[chosen.sweep]}: the experiment sweeps it")
    try:
        return Experiment.model_validate({**chosen.model_dump(), **changes})
    except ValidationError as error:
        asked_for = ", ".join(f"{name} {value}" for name, value in changes.items())
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ReproError(f"{asked_for}: {reason}; choose another") from None


def pick(kind: str, value: str | int | Sequence[object], among: dict[str, T]) -> tuple[T, ...]:
    """What a notebook asks for by name: `all`, one, several separated by commas, or a sequence.

    Raises
    ------
    ReproError
        A name is unknown.
    """
    if value == "all":
        return tuple(among.values())
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",")]
    elif isinstance(value, int):
        names = [str(value)]
    else:
        names = [str(name) for name in value]
    return tuple(choose(kind, name, among) for name in dict.fromkeys(names))
