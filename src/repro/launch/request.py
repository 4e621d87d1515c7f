"""Request for one measurement: its place in the dataset, what ranks do, and over which links."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from repro.catalog.models.papers import Family
from repro.catalog.studies.experiments import SWEPT
from repro.catalog.systems.topology import Topology
from repro.collectives.records import CollectiveSweep
from repro.paths import HOME
from repro.results.outcome import Outcome
from repro.train.records import TrainingRun

if TYPE_CHECKING:  # Ranks load this module, and need no xarray.
    import xarray as xr

Work = TypeVar("Work", TrainingRun, CollectiveSweep)
Coordinates = Mapping[str, str | int | float]


@dataclass(frozen=True)
class PoolSpec:
    """Ranks to start on this machine.

    Attributes
    ----------
    topology
        One rank per GPU of it, each in its own namespace. None: ranks connect on the loopback.
    ranks
        Number of ranks.
    cores
        CPU share of each rank, which paces its compute. None: ranks compute at full speed.
    """

    topology: Topology | None
    ranks: int
    cores: float | None


@dataclass(frozen=True)
class Request(Generic[Work]):
    """One measurement on the first `ranks` ranks of a pool or on real nodes.

    Attributes
    ----------
    coordinates
        Its place in the dataset: each becomes a dimension of size one.
    run
        Work of the ranks.
    ranks
        Number of ranks.
    rates_gbps
        Rates of emulated links, by level.
    fabric_latency_s
        Latency added between emulated nodes where the kernel can.
    memory_bytes
        Memory that each rank may allocate in addition to its memory when the run begins. Empty: no
        limit.
    passes_s
        Times of a micro batch's passes for which rates and latency are right, by stage: forward,
        backward, and the optimizer's step, which takes as long as it takes if it is left out. Where
        ranks need more time, all passes and links are slower. Empty: links are as given.
    time_scale, rate_scale
        Testbed seconds and rate that represent one full-scale second and rate.
    conditions
        Everything else that decides the result, such as properties of the machine.
    dataset
        Function that turns the ranks' outcome into a dataset without coordinates. None: the one of
        training runs or of collective sweeps.

    Examples
    --------
    >>> Request({"model": "bert-large", "protocol": "rdma", "gpus": 8}, run=None, ranks=8).label
    'bert-large, rdma, 8 GPUs'
    """

    coordinates: Coordinates
    run: Work
    ranks: int
    rates_gbps: Mapping[str, float] = field(default_factory=dict)
    fabric_latency_s: float = 0.0
    memory_bytes: tuple[int, ...] = ()
    passes_s: tuple[tuple[float, ...], ...] = ()
    time_scale: float = 1.0
    rate_scale: float = 1.0
    conditions: Mapping[str, object] = field(default_factory=dict)
    dataset: "Callable[[Work, Outcome], xr.Dataset] | None" = None

    @property
    def protocol(self) -> str:
        """Name in `params/protocols.yaml`; `loopback` where links are not emulated."""
        return str(self.coordinates.get("protocol", "loopback"))

    @property
    def label(self) -> str:
        """Display name."""
        return ", ".join(
            _text(name, value) for name, value in self.coordinates.items() if name != "source"
        )

    @property
    def series(self) -> tuple[object, ...]:
        """Properties in common with the other values of its sweep."""
        return tuple((k, v) for k, v in self.coordinates.items() if k not in SWEPT)

    @property
    def steps(self) -> int:
        """Fewest steps of progress that ranks report: iterations, or cases of a sweep."""
        run: TrainingRun | CollectiveSweep = self.run
        return run.configurations if isinstance(run, CollectiveSweep) else run.iterations

    def inputs(self) -> dict[str, object]:
        """Return everything that decides the result, as plain JSON values.

        Paths in the project are relative to it.
        """
        fields: dict[str, object] = plain(asdict(replace(self, dataset=None)))
        del fields["dataset"]
        return fields


def _text(name: str, value: str | int | float) -> str:
    if isinstance(value, str):
        return value
    if name == "gpus":
        return f"{value} GPUs"
    return f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"


def groups_of(run: TrainingRun | CollectiveSweep) -> tuple[int, Family, int, int]:
    """Return pipeline stages, model family, tensor and expert parallel size of a run's groups."""
    if isinstance(run, TrainingRun):
        return run.pipeline_parallel, run.family, run.tensor_parallel, run.expert_parallel
    return 1, "gpt", 1, 1


def plain(value: Any) -> Any:
    """Return a value as JSON has it: paths, relative to the project if inside it, and models."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value.relative_to(HOME) if value.is_relative_to(HOME) else value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
