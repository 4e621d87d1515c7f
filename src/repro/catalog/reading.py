"""Reader of YAML files as typed, validated, frozen values."""

import reprlib
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from repro.errors import ReproError, of_file, one_line
from repro.paths import find

T = TypeVar("T")

# About ten times as fast, if PyYAML was built with libyaml.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Anchors make a few lines a value of gigabytes, of which messages show the beginning.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_short = _SHORT.repr
_PROBLEMS = {"missing": "this key is missing", "extra_forbidden": "unknown key"}


class Entry(BaseModel):
    """Base of everything read from `params/`: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_params(name: str, schema: Any) -> Any:
    """Read a file of `params/`, the user's or else the package's, as `read_yaml` does."""
    return read_yaml(find(f"params/{name}"), schema)


def read_yaml(path: Path, schema: Any) -> Any:
    """Read a YAML file and validate it against a type.

    Parameters
    ----------
    path : Path
        The file.
    schema : type
        Any type pydantic can validate: an `Entry`, `dict[str, Entry]`, ...

    Returns
    -------
    Any
        The validated value.

    Raises
    ------
    ReproError
        The file is missing or is not YAML, or a value is not allowed. The message names the file,
        the key, the value and the violated rule.
    """
    try:
        changed_ns = path.stat().st_mtime_ns
    except FileNotFoundError:
        raise ReproError(f"{path}: no such file; fix: restore it from the repository") from None
    return _read(path, changed_ns, schema)


# A sweep reads the same files thousands of times, and values are immutable, so they are cached. The
# modification time is part of the key: a file that is edited during a session is read again.
@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int, schema: Any) -> Any:
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ReproError(f"{path}: cannot be read as text ({error}); fix: give a text") from None
    # Dates that do not exist, and too many digits or levels, are other errors than YAML's.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ReproError(f"{path}: not valid YAML ({one_line(error)}); fix: correct it") from None
    with of_file(path, "correct this key"):
        try:
            value = TypeAdapter(schema).validate_python(raw)
        except ValidationError as error:
            # A misspelt key causes two errors; the unknown key is the one to fix.
            first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
            key = ".".join(str(part) for part in first["loc"]) or "(top)"
            problem = _PROBLEMS.get(first["type"], first["msg"].removeprefix("Value error, "))
            # A check of several keys reports their names and values itself.
            got = "" if isinstance(first["input"], dict) else f" (got {_short(first['input'])})"
            raise ReproError(one_line(f"{key}: {problem}{got}")) from None
    return value


def choose(kind: str, name: str, among: dict[str, T]) -> T:
    """Return the entry with this name; an unknown name is a `ReproError` that lists the choices."""
    if name not in among:
        raise ReproError(f"unknown {kind} {name!r}; choose from: {', '.join(among)}")
    return among[name]
