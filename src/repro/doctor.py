"""Check of what this machine supports, with a fix for what is missing."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from repro.catalog.systems.nodes import read_nodes
from repro.catalog.systems.protocols import read_transports
from repro.errors import ProtocolMissing
from repro.extras import missing_part
from repro.launch.nodes.transports import choose_adapters
from repro.observe.adapters import read_interfaces, read_ports
from repro.observe.environment import usable_cores
from repro.paths import HOME
from repro.testbed.ability import testbed_ability
from repro.testbed.speed import cores_per_rank

_SCALING_RANKS = 8
_NEEDED_GIB = 3
_NEEDED_DISK_GIB = 4
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
# First Linux version on which NCCL uses DMA-BUF, with the open kernel modules of the driver.
_DMA_BUF_KERNEL = (5, 12)


@dataclass(frozen=True)
class Capability:
    """Something that the machine supports or lacks, with a fix if it is missing."""

    capability: str
    works: bool
    found: str
    fix: str = ""

    def __str__(self) -> str:
        """Return one line: `yes` or `NO `, the finding, and the fix."""
        note = f"; fix: {self.fix}" if self.fix else ""
        return f"{'yes' if self.works else 'NO '}  {self.capability}: {self.found}{note}"


def examine() -> list[Capability]:
    """Check all capabilities."""
    return [
        _namespaces(),
        _computing(),
        _memory(),
        _disk(),
        _gpus(),
        _nccl(),
        _numa(),
        _adapters(),
        *_protocols(),
        _slurm(),
    ]


def _capability(works: bool, what: str, found: str, fix: str = "") -> Capability:
    return Capability(what, works, found, "" if works else fix)


def _namespaces() -> Capability:
    ability = testbed_ability()
    # `found` ends with the fix if the network cannot be emulated.
    return _capability(ability.works, "emulated network", ability.found)


def _computing() -> Capability:
    share = cores_per_rank(_SCALING_RANKS)
    found = f"{usable_cores():g} cores, {_SCALING_RANKS} emulated GPUs get {share:g} each"
    return _capability(True, "computing", found)


def _memory() -> Capability:
    information = Path("/proc/meminfo")
    if not information.exists():
        return _capability(
            False, "memory", "no /proc/meminfo", "run on Linux (the testbed needs it)"
        )
    fields = dict(
        line.split(":", 1) for line in information.read_text().splitlines() if ":" in line
    )
    gib = int(fields["MemAvailable"].split()[0]) / 2**20
    return _capability(
        gib >= _NEEDED_GIB,
        "memory",
        f"{gib:.1f} GiB available, {_SCALING_RANKS} ranks need about {_NEEDED_GIB}",
        "stop other programs",
    )


def _disk() -> Capability:
    gib = shutil.disk_usage(HOME).free / 2**30
    return _capability(gib >= _NEEDED_DISK_GIB, "disk", f"{gib:.1f} GiB free", "free disk space")


def _gpus() -> Capability:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return _capability(False, "GPUs", "none found", "use a GPU node for source `cluster`")
    names = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False).stdout
    found = "; ".join(names.strip().splitlines()) or "none"
    return _capability(bool(names.strip()), "GPUs", found, "check the driver with `nvidia-smi`")


def _adapters() -> Capability:
    """Report HCA ports and interfaces of this node; virtual ones only if there are no others."""
    interfaces = read_interfaces()
    physical = [interface for interface in interfaces if interface.physical]
    found = [str(adapter) for adapter in (*read_ports(), *(physical or interfaces))]
    return _capability(bool(found), "NICs", ", ".join(found) or "none", "use one node only")


def _gpudirect() -> str:
    """Return how NICs access GPU memory; empty if they cannot."""
    for name in _PEER_MODULES:
        if (Path("/sys/module") / name).exists():
            return name
    driver = Path("/proc/driver/nvidia/version")
    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    is_open = driver.exists() and "Open Kernel Module" in driver.read_text()
    return "DMA-BUF" if is_open and kernel >= _DMA_BUF_KERNEL else ""


def _protocols() -> list[Capability]:
    """Report the adapters that each protocol uses on this node."""
    ports, interfaces, named = read_ports(), read_interfaces(), read_nodes().adapters
    gpudirect = _gpudirect()
    lines = []
    for name, entry in read_transports().items():
        try:
            adapters = choose_adapters(entry, ports, interfaces, named.get(name, ()))
        except ProtocolMissing as missing:
            lines.append(
                _capability(False, f"protocol {name}", str(missing), "use another protocol")
            )
            continue
        found = ", ".join(adapters)
        if entry.nccl.gpudirect:
            found += f", GPUDirect by {gpudirect}" if gpudirect else ", no GPUDirect"
        works = bool(gpudirect) or not entry.nccl.gpudirect
        fix = "load nvidia_peermem, install the open driver (DMA-BUF), or use rdma-host"
        lines.append(_capability(works, f"protocol {name}", found, fix))
    return lines


def _nccl() -> Capability:
    if find_spec("torch") is None:
        return _capability(False, "NCCL", str(missing_part("torch")))
    import torch

    if not torch.cuda.is_available():
        return _capability(False, "NCCL", "no GPU", "use a GPU node for source `cluster`")
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return _capability(True, "NCCL", f"{version}, torch {torch.__version__}")


def _numa() -> Capability:
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    cpus = [f"{node.name}: CPUs {(node / 'cpulist').read_text().strip()}" for node in nodes]
    return _capability(True, "NUMA", "; ".join(cpus) or "one node")


def connections() -> list[str]:
    """Return the lines of the driver's matrix of connections between GPUs and NICs."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    matrix = subprocess.run([smi, "topo", "-m"], capture_output=True, text=True, check=False).stdout
    return [line for line in matrix.splitlines() if line.strip()]


def _slurm() -> Capability:
    """Report whether jobs can be submitted, and the partition of `params/nodes.yaml`."""
    nodes = read_nodes()
    if shutil.which("sbatch") is None:
        return _capability(False, "Slurm", "no sbatch", "use a Slurm node for `launch: slurm`")
    if nodes.launch == "local" or nodes.slurm is None:
        return _capability(True, "Slurm", "available; params/nodes.yaml sets `launch: local`")
    command = ["sinfo", "--noheader", f"--partition={nodes.slurm.partition}"]
    states = subprocess.run(
        [*command, "--format=%D nodes of %c cores, %G, at most %l, %T"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = f"partition {nodes.slurm.partition}: {'; '.join(states.splitlines()) or 'not found'}"
    return _capability(bool(states.strip()), "Slurm", found, "name a partition that `sinfo` lists")
