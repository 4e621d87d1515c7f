"""Paths of the files that come with the package, and of the folders that it writes to.

A clone is both. An installed wheel has a copy of `params/` and `data/` and writes to the working
directory. The environment variable `REPRO_HOME` names another folder to write to.
"""

import os
from pathlib import Path

from repro.errors import ReproError

_PACKAGE = Path(__file__).resolve().parent
_WHEEL = _PACKAGE / "_data"  # pyproject.toml puts `params/` and `data/` there
_INSTALLED = _WHEEL.exists()

ROOT = _WHEEL if _INSTALLED else _PACKAGE.parents[1]
HOME = Path(os.environ.get("REPRO_HOME") or (Path.cwd() if _INSTALLED else ROOT)).resolve()
PUBLISHED = ROOT / "data" / "published"
ENWIKI = HOME / "data" / "enwiki"
RESULTS = HOME / "results"


def find(name: str) -> Path:
    """Return a file or folder of the user below `HOME`, or else the one of the package.

    Parameters
    ----------
    name
        Path in the repository, such as `params/gpus.yaml`.

    Examples
    --------
    >>> find("params/gpus.yaml").name
    'gpus.yaml'
    """
    own = HOME / name
    return own if own.exists() else ROOT / name


def require_clone(command: str) -> Path:
    """Return the folder of the clone.

    Raises
    ------
    ReproError
        The package is an installed wheel, which has neither pipeline nor documents.
    """
    if _INSTALLED:
        raise ReproError(
            f"{command}: an installed package has no pipeline, notebooks and documents; fix: run it"
            " in a clone of the repository (README, Quick start)"
        )
    return ROOT
