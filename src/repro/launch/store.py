"""Content-addressed store of results: a value is written once, and never changed."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import xarray as xr

from repro.collectives.records import CollectiveSweep
from repro.launch.method import method_digest
from repro.launch.request import Request, plain
from repro.observe.environment import provenance
from repro.results.store import read_dataset, write_dataset
from repro.train.records import TrainingRun


@dataclass(frozen=True)
class Store:
    """Datasets in a folder, by the digest of everything that decides them.

    That is a request's inputs, the code that ranks load without its docstrings (`METHODS`), and
    the corpus. An interrupted run resumes from the store; deleting the folder measures all again.
    """

    folder: Path

    def find(self, request: Request[Any]) -> xr.Dataset | None:
        """Return the result of a request; None if there is none."""
        path = self._path(key(request))
        return read_dataset(path) if path.exists() else None

    def has(self, request: Request[Any]) -> bool:
        """Return whether there is a result of a request."""
        return self._path(key(request)).exists()

    def put(self, request: Request[Any], result: xr.Dataset) -> xr.Dataset:
        """Store the result of a request with its provenance, and return it."""
        stored = result.assign_attrs(provenance=provenance({}))
        write_dataset(stored, self._path(key(request)))
        return stored

    def find_or_run(
        self, inputs: Mapping[str, object], method: str, run: Callable[[], xr.Dataset]
    ) -> xr.Dataset:
        """Return the dataset of inputs, which `run` measures if it is not in the store.

        Parameters
        ----------
        inputs
            Everything that decides the dataset in addition to the code.
        method
            A name of `METHODS`.
        """
        path = self._path(_digest(inputs, method))
        if not path.exists():
            found = run()
            if not found.data_vars:
                return found
            write_dataset(found, path)
        return read_dataset(path)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.nc"


def key(request: Request[Any]) -> str:
    """Return the digest of everything that decides a request's result."""
    run: TrainingRun | CollectiveSweep = request.run
    if isinstance(run, CollectiveSweep):
        return _digest(request.inputs(), "collectives")
    return _digest(
        {**request.inputs(), "corpus": corpus_digest(run.corpus, run.family)}, "training"
    )


@cache
def corpus_digest(corpus: Path, family: str) -> str:
    """Return the digest of the tokenizer and the dataset of a model family."""
    digest = hashlib.sha256()
    for name in (f"tokenizers/{family}.json", f"datasets/{family}.bin", f"datasets/{family}.idx"):
        if (path := corpus / name).exists():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(inputs: Mapping[str, object], method: str) -> str:
    text = json.dumps({**plain(inputs), "method": method_digest(method)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
