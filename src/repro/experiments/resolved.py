"""A selection with every number fixed and nothing run: what is asked of which ranks."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from repro.catalog.systems.nodes import Nodes
from repro.launch.cases import Case
from repro.launch.messages import Site
from repro.observe.environment import provenance
from repro.paths import HOME


@dataclass(frozen=True)
class Resolved:
    """What a selection asks of its source, and what its dataset will say of itself.

    Attributes
    ----------
    title
        Of the progress bar.
    where
        The ranks: a set of them on this machine, or real nodes.
    cases
        What they are asked, in this order.
    attributes
        Of the dataset.
    parameters
        What the cases follow from, for the dataset's provenance.
    missing
        What cannot be asked here, and why.
    """

    title: str
    where: Site | Nodes
    cases: tuple[Case[Any], ...]
    attributes: Mapping[str, object]
    parameters: Mapping[str, object]
    missing: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """All of it as text, the same on every machine with the same numbers."""
        where = asdict(self.where) if isinstance(self.where, Site) else self.where.model_dump()
        asked = {"where": where, "cases": self._asked(), "missing": dict(self.missing)}
        return json.dumps(asked, indent=1, default=_plain)

    def describe(self, dataset: xr.Dataset, not_run: Mapping[str, str]) -> xr.Dataset:
        """Give the cases' dataset its attributes; `asked` is what ranks were told."""
        return dataset.assign_attrs(
            **self.attributes,
            not_run=json.dumps({**self.missing, **not_run}),
            asked=self.asked_json(),
            provenance=provenance(self.parameters),
        )

    def asked_json(self) -> str:
        """What ranks are told, as the dataset keeps it."""
        return json.dumps(self._asked(), default=_plain)

    def _asked(self) -> list[Mapping[str, object]]:
        return [case.inputs for case in self.cases]


def _plain(value: object) -> object:
    """What JSON lacks: paths, those of the project without where it lies, and topologies."""
    if isinstance(value, Path):
        return str(value.relative_to(HOME) if value.is_relative_to(HOME) else value)
    return value.model_dump() if hasattr(value, "model_dump") else str(value)
