"""The three descriptions of the environment agree."""

import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from repro.paths import ROOT


def _pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if re.match(r"[a-z0-9._-]+==", line)]
    return {name: Version(version.split(" ;")[0]) for name, version in pairs}


def _requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = project["dependencies"] + [line for extra in extras.values() for line in extra]
    requirements = [Requirement(line) for line in named]
    return [one for one in requirements if one.name not in (project["name"], "nvidia-ml-py")]


def test_every_dependency_is_pinned_within_its_range() -> None:
    pins = _pins()
    for requirement in _requirements():
        assert pins[requirement.name] in requirement.specifier, requirement.name


def test_conda_users_get_the_same_versions() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert "--constraint constraints.txt" in pip
    assert "--editable .[test]" in pip
    named = [Requirement(line) for line in pip if not line.startswith("--")]
    assert {requirement.name for requirement in named} == {
        "jupyterlab",
        "papermill",
        "torch",
        "megatron-core",
        "xarray",
        "hvplot",
        "dvc",
    }
    pins = _pins()
    for requirement in named:
        assert str(requirement.specifier) == f"=={pins[requirement.name]}"


def test_the_lock_says_how_it_was_made() -> None:
    assert "uv pip compile pyproject.toml" in (ROOT / "constraints.txt").read_text()[:300]
