"""Read a YAML file into a typed, validated, frozen value."""

from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from repro.errors import ReproError, one_line

T = TypeVar("T")

# Ten times as fast, where PyYAML was built with libyaml.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PROBLEMS = {"missing": "this key is missing", "extra_forbidden": "unknown key"}


class Entry(BaseModel):
    """Base of everything read from `params/`: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    The validated value.

    Raises
    ------
    ReproError
        The file is missing, is not YAML, or a value is not allowed; the message names the file,
        the key, the value and the rule it broke.
    """
    try:
        changed_ns = path.stat().st_mtime_ns
    except FileNotFoundError:
        raise ReproError(f"{path}: no such file; restore it from the repository") from None
    return _read(path, changed_ns, schema)


# Values are immutable, and a model is asked for its cluster thousands of times in a sweep; the
# time of change is part of the key, so that a file edited in a session is read again.
@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int, schema: Any) -> Any:
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        raise ReproError(f"{path}: not valid YAML ({one_line(error)})") from None
    try:
        value = TypeAdapter(schema).validate_python(raw)
    except ValidationError as error:
        # A misspelt key is two errors, and the unknown key is the one that says what to mend.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        key = ".".join(str(part) for part in first["loc"]) or "(top)"
        problem = _PROBLEMS.get(first["type"], first["msg"].removeprefix("Value error, "))
        # A check of several keys says itself which and what they are.
        got = "" if isinstance(first["input"], dict) else f" (got {first['input']!r})"
        raise ReproError(f"{path}: {key}: {problem}{got}") from None
    return value


def choose(kind: str, name: str, among: dict[str, T]) -> T:
    """Look a name up; a name that is not there is an error that says what is."""
    if name not in among:
        raise ReproError(f"unknown {kind} {name!r}; choose from: {', '.join(among)}")
    return among[name]
