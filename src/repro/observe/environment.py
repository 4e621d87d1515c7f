"""Provenance of results: time, commit, versions, machine, CPU limits and parameters."""

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

from repro.extras import DISTRIBUTION
from repro.paths import ROOT

_PACKAGES = (DISTRIBUTION, "torch", "megatron-core", "numpy", "xarray", "tokenizers", "pyroute2")


def provenance(parameters: Mapping[str, object]) -> str:
    """Return a JSON list of one object: time, commit, versions, machine and parameters.

    It is a list because a dataset that was merged from several has one object for each.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    entry: dict[str, object] = {
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
    }
    if parameters:
        entry["parameters"] = parameters
    return json.dumps([entry], default=str)


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the cores that this process may use, by CPU affinity and cgroup quota."""
    return min(float(_cores()), _cpu_quota(cgroups))


def _cores() -> int:
    # macOS has no affinity.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _cpu_quota(cgroups: Path) -> float:
    """Return the smallest quota of this process's cgroups, in cores; infinite without a limit."""
    memberships = Path("/proc/self/cgroup")
    text = memberships.read_text() if memberships.exists() else ""
    name = next((line[3:] for line in text.splitlines() if line.startswith("0::")), "")
    # Inside a container, the container's own cgroup is the root of the visible tree.
    parts = Path(name.lstrip("/")).parts
    groups = (cgroups.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))
    return min(_group_quota(group / "cpu.max") for group in groups)


def _group_quota(cpu_max: Path) -> float:
    """Return the quota of one cgroup, in cores; infinite without one."""
    quota, _, period = (cpu_max.read_text() if cpu_max.exists() else "max").partition(" ")
    return float("inf") if quota.strip() == "max" else int(quota) / int(period)


def computing_machine() -> dict[str, object]:
    """Return the properties of this machine that determine how fast ranks compute on its cores."""
    return {
        "processor": _processor(),
        "usable_cores": usable_cores(),
        **{name: _version(name) for name in ("torch", "megatron-core")},
    }


def accelerator() -> dict[str, str]:
    """Return the compute device and communication backend of ranks here, with versions."""
    import torch

    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if not torch.cuda.is_available():
        return {**versions, "device": _processor(), "backend": "gloo"}
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {
        **versions,
        "device": torch.cuda.get_device_name(),
        "backend": f"NCCL {version}",
        "cuda": str(torch.version.cuda),
    }


def source_commit() -> str:
    """Return the git commit of the sources, or `unknown` without git.

    `-dirty` is appended if code, parameters or notebooks differ from the commit.
    """
    # An installed package may lie in somebody else's repository.
    if not (ROOT / ".git").exists():
        return "unknown"
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "src", "params", "notebooks")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


@cache
def sources_digest() -> str:
    """Return the SHA-256 digest of all modules of this package: results depend on the code."""
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
    # On Arm, /proc/cpuinfo has no model name.
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
