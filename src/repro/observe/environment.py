"""Provenance: what ran, on what, from which sources."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from repro.paths import ROOT

_PACKAGES = ("repro", "torch", "megatron-core", "numpy", "xarray", "tokenizers", "pyroute2")


def provenance(parameters: Mapping[str, object]) -> str:
    """A JSON list of one object: time, commit, versions, machine and parameters.

    A list, because a dataset that was joined from several has that of each.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": source_commit(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "machine": {
            "kernel": platform.release(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(memory_bytes / 2**30, 1),
        },
        "parameters": parameters,
    }
    return json.dumps([entry], default=str)


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that this process may use: those it may run on, or what a container is allowed."""
    return min(float(_cores()), _allowance(cgroups))


def is_rationed(cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether a container is allowed less than its cores: whoever computes uses that up, be it the
    last to be given a core."""
    return _allowance(cgroups) < _cores()


def _cores() -> int:
    # macOS has no affinity.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _allowance(cgroups: Path) -> float:
    """Cores that this process's groups are allowed; infinite without a limit."""
    memberships = Path("/proc/self/cgroup")
    own = memberships.read_text() if memberships.exists() else ""
    name = next((line[3:] for line in own.splitlines() if line.startswith("0::")), "")
    # In a container its own group is the root of what it sees.
    parts = Path(name.lstrip("/")).parts
    groups = (cgroups.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))
    return min(_allowed(group / "cpu.max") for group in groups)


def _allowed(cpu_max: Path) -> float:
    """Cores by a group's quota; infinite without one."""
    quota, _, period = (cpu_max.read_text() if cpu_max.exists() else "max").partition(" ")
    return float("inf") if quota.strip() == "max" else int(quota) / int(period)


def computing_machine() -> dict[str, object]:
    """What decides how fast ranks on this machine's cores compute."""
    return {
        "processor": _processor(),
        "usable_cores": usable_cores(),
        **{name: _version(name) for name in ("torch", "megatron-core")},
    }


def accelerator() -> dict[str, str]:
    """What ranks compute on and communicate through here, with versions."""
    import torch

    found = {"torch": torch.__version__, "python": platform.python_version()}
    if not torch.cuda.is_available():
        return {**found, "device": _processor(), "backend": "gloo"}
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {
        **found,
        "device": torch.cuda.get_device_name(),
        "backend": f"NCCL {version}",
        "cuda": str(torch.version.cuda),
    }


def source_commit() -> str:
    """The sources' git commit, with `-dirty` where code or parameters differ from it.

    `unknown` without git.
    """
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "src", "params", "notebooks")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


@cache
def sources_digest() -> str:
    """Of all modules of this package: what other code measured is another result."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    # Arm's kernel names no model.
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
