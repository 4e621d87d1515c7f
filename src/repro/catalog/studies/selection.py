"""Selection of a part of an experiment: a notebook's parameters, validated once."""

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
    """Validated part of an experiment."""

    name: str
    experiment: Experiment
    profile_name: str
    profile: Profile
    source: str
    protocols: tuple[str, ...]
    models: tuple[str, ...]
    gpus: tuple[int, ...]

    def batches(self, model: str, gpus: int) -> dict[int | None, Batch]:
        """Return the batches of a model by the value of the sweep (None: no sweep)."""
        return self.experiment.batches(model, gpus, self.profile)

    def micro_batch_sizes(self, model: str) -> set[int]:
        """Return the micro batch sizes of one model, on any number of GPUs."""
        return {
            batch.micro_batch_size
            for gpus in self.gpus
            for batch in self.batches(model, gpus).values()
        }


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
    """Validate a notebook's parameters.

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
        open-weight ones that the experiment can train.
    profile : str
        A profile of the experiment.
    micro_batch_size, pipeline_parallel
        Replace the experiment's; None keeps them.

    Raises
    ------
    ReproError
        A value is unknown; the message lists the choices. Or batch, GPUs and stages do not divide.

    Examples
    --------
    >>> selection = select("weak_scaling", source="predicted", protocol="ipoib", gpus=8)
    >>> selection.protocols, selection.gpus
    (('ipoib',), (8,))
    """
    chosen = _override(experiment(name), micro_batch_size, pipeline_parallel)
    selected = choose("profile", profile, chosen.profiles)
    protocols = dict.fromkeys((*chosen.protocols, *cluster(chosen.cluster).protocols))
    if source == "cluster":
        protocols |= dict.fromkeys(read_transports())
    return Selection(
        name,
        chosen,
        profile,
        selected,
        choose("source", source, {name: name for name in SOURCES}),
        choose("protocol", protocol, {**{p: (p,) for p in protocols}, "all": chosen.protocols}),
        selected.models
        if models == "all"
        else choose_several("model", models, _models(chosen, selected)),
        choose_several("number of GPUs", gpus, {str(count): count for count in selected.gpus}),
    )


def _models(chosen: Experiment, selected: Profile) -> dict[str, str]:
    """Return a profile's models, and open-weight ones, which no profile lists."""
    others = [name for name, one in chosen.models.items() if isinstance(one, OpenModel)]
    return {name: name for name in (*selected.models, *others)}


def _override(chosen: Experiment, micro_batch_size: int | None, stages: int | None) -> Experiment:
    """Return an experiment with another micro batch or number of stages, validated like a file."""
    given = {"micro_batch_size": micro_batch_size, "pipeline_parallel": stages}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        return chosen
    if chosen.sweep in changes:
        value = changes[chosen.sweep]
        raise ReproError(f"{chosen.sweep} {value}: the experiment sweeps it; fix: omit it")
    try:
        return Experiment.model_validate({**chosen.model_dump(), **changes})
    except ValidationError as error:
        requested = ", ".join(f"{name} {value}" for name, value in changes.items())
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ReproError(f"{requested}: {reason}") from None


def choose_several(
    kind: str, value: str | int | Sequence[object], among: dict[str, T]
) -> tuple[T, ...]:
    """Choose entries by name: `all`, one, several separated by commas, or a sequence.

    Raises
    ------
    ReproError
        A name is unknown; the message lists the choices.
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
