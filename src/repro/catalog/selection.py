"""Which part of an experiment to run: the parameters of a notebook, checked once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from repro.catalog.experiments import Experiment, Profile, experiment
from repro.catalog.protocols import select_protocols
from repro.catalog.reading import choose

T = TypeVar("T")

SOURCES = ("paper", "predicted", "testbed", "cluster")


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


def select(
    name: str,
    source: str = "testbed",
    protocol: str = "all",
    models: str | Sequence[str] = "all",
    gpus: str | int | Sequence[int] = "all",
    profile: str = "default",
) -> Selection:
    """Check a notebook's parameters.

    Parameters
    ----------
    name : str
        The experiment: a file of `params/`.
    source : str
        One of `SOURCES`.
    protocol : str
        `rdma`, `ipoib`, `tcp` or `all`.
    models, gpus
        `all` of the profile's; one; several separated by commas; or a sequence.
    profile : str
        A profile of the experiment.

    Raises
    ------
    ReproError
        A value is unknown; the message says which values are known.
    """
    chosen = experiment(name)
    wanted = choose("profile", profile, chosen.profiles)
    return Selection(
        name,
        chosen,
        profile,
        wanted,
        choose("source", source, {known: known for known in SOURCES}),
        select_protocols(protocol),
        _pick("model", models, {model: model for model in wanted.models}),
        _pick("number of GPUs", gpus, {str(count): count for count in wanted.gpus}),
    )


def _pick(kind: str, value: str | int | Sequence[object], among: dict[str, T]) -> tuple[T, ...]:
    if value == "all":
        return tuple(among.values())
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",")]
    elif isinstance(value, int):
        names = [str(value)]
    else:
        names = [str(name) for name in value]
    return tuple(choose(kind, name, among) for name in names)
