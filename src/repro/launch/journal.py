"""Finished configurations on disk, so that an interrupted experiment goes on where it stopped."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import xarray as xr

from repro.atomic import replacing
from repro.launch.method import METHODS, method_digest
from repro.results.store import read_dataset, write_dataset


class Journal:
    """Datasets of finished configurations beside an experiment's output, named by their inputs.

    A configuration is found again only if nothing that went into it has changed, the code that
    ranks load included.
    """

    def __init__(self, output: Path):
        self._folder = output.with_name(f".{output.stem}.journal")

    def has(self, inputs: Mapping[str, object]) -> bool:
        """Whether a configuration with exactly these inputs is finished."""
        return self._path(inputs).exists()

    def find(self, inputs: Mapping[str, object]) -> xr.Dataset | None:
        """The dataset of a configuration with exactly these inputs, if there is one."""
        path = self._path(inputs)
        return read_dataset(path) if path.exists() else None

    def keep(self, inputs: Mapping[str, object], dataset: xr.Dataset) -> None:
        """Remember a finished configuration."""
        write_dataset(dataset, self._path(inputs))

    def hand_on(self, other: "Journal") -> None:
        """Let what is finished here be found in another experiment's journal too: configurations
        with the same inputs need not be measured again."""
        for path in self._folder.glob("*.nc"):
            with replacing(other._folder / path.name) as copy:
                shutil.copyfile(path, copy)

    def clear(self) -> None:
        """Forget everything: the experiment is complete."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, inputs: Mapping[str, object]) -> Path:
        text = json.dumps(
            {**inputs, "method": [method_digest(name) for name in METHODS]},
            sort_keys=True,
            default=str,
        )
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.nc"
