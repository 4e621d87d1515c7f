"""What this machine can do, and how to make it do more."""

import os
import shutil
import subprocess
from pathlib import Path

from repro.catalog.systems.nodes import read_nodes
from repro.catalog.systems.protocols import read_transports
from repro.errors import ProtocolMissing
from repro.launch.nodes.transports import choose_adapters
from repro.observe.adapters import read_interfaces, read_ports
from repro.observe.environment import usable_cores
from repro.paths import ROOT
from repro.testbed.ability import testbed_ability
from repro.testbed.speed import cores_per_rank

_SCALING_RANKS = 8
_NEEDED_GIB = 3
_NEEDED_DISK_GIB = 4
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
# NCCL takes DMA-BUF with the driver's open kernel modules from this kernel on.
_DMA_BUF_KERNEL = (5, 12)


def examine() -> list[str]:
    """One line per ability: `yes` or `NO `, what was found, and the mend where something lacks."""
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
        *_topology(),
    ]


def _line(works: bool, what: str, found: str, mend: str = "") -> str:
    return f"{'yes' if works else 'NO '}  {what}: {found}{'' if works else '; ' + mend}"


def _namespaces() -> str:
    ability = testbed_ability()
    return _line(ability.works, "emulated network", ability.found, "the testbed does not run")


def _computing() -> str:
    share = cores_per_rank(_SCALING_RANKS)
    found = f"{usable_cores():g} cores, {_SCALING_RANKS} emulated GPUs get {share:g} each"
    return _line(True, "computing", found)


def _memory() -> str:
    information = Path("/proc/meminfo")
    if not information.exists():
        return _line(False, "memory", "no /proc/meminfo to read", "the testbed needs Linux")
    fields = dict(
        line.split(":", 1) for line in information.read_text().splitlines() if ":" in line
    )
    gib = int(fields["MemAvailable"].split()[0]) / 2**20
    return _line(
        gib >= _NEEDED_GIB,
        "memory",
        f"{gib:.1f} GiB available, {_SCALING_RANKS} ranks need about {_NEEDED_GIB}",
        "stop other programs",
    )


def _disk() -> str:
    gib = shutil.disk_usage(ROOT).free / 2**30
    return _line(gib >= _NEEDED_DISK_GIB, "disk", f"{gib:.1f} GiB free", "free some space")


def _gpus() -> str:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return _line(False, "GPUs", "none found", "source `cluster` needs one")
    names = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False).stdout
    return _line(bool(names.strip()), "GPUs", "; ".join(names.strip().splitlines()) or "none", "")


def _adapters() -> str:
    """HCA ports and interfaces of this node; virtual ones only where they are all it has."""
    interfaces = read_interfaces()
    physical = [one for one in interfaces if one.physical]
    found = [str(one) for one in (*read_ports(), *(physical or interfaces))]
    return _line(bool(found), "NICs", ", ".join(found) or "none", "only one node can be used")


def _gpudirect() -> str:
    """How NICs reach GPU memory; empty if they do not."""
    for name in _PEER_MODULES:
        if (Path("/sys/module") / name).exists():
            return name
    driver = Path("/proc/driver/nvidia/version")
    kernel = tuple(int(part) for part in os.uname().release.split(".")[:2])
    opened = driver.exists() and "Open Kernel Module" in driver.read_text()
    return "DMA-BUF" if opened and kernel >= _DMA_BUF_KERNEL else ""


def _protocols() -> list[str]:
    """What each protocol would use on this node, told from its adapters."""
    ports, interfaces, named = read_ports(), read_interfaces(), read_nodes().adapters
    way = _gpudirect()
    lines = []
    for name, entry in read_transports().items():
        try:
            adapters = choose_adapters(entry, ports, interfaces, named.get(name, ()))
        except ProtocolMissing as missing:
            lines.append(_line(False, f"protocol {name}", str(missing), "use another"))
            continue
        found = ", ".join(adapters)
        if entry.nccl.gpudirect:
            found += f", GPUDirect by {way}" if way else ", no GPUDirect"
        works = bool(way) or not entry.nccl.gpudirect
        mend = "load nvidia_peermem, or take the open driver with DMA-BUF; or use rdma-host"
        lines.append(_line(works, f"protocol {name}", found, mend))
    return lines


def _nccl() -> str:
    import torch

    if not torch.cuda.is_available():
        return _line(False, "NCCL", "no GPU to use it", "source `cluster` needs one")
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return _line(True, "NCCL", f"{version}, torch {torch.__version__}")


def _numa() -> str:
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    cpus = [f"{node.name}: CPUs {(node / 'cpulist').read_text().strip()}" for node in nodes]
    return _line(True, "NUMA", "; ".join(cpus) or "one node")


def _topology() -> list[str]:
    """How GPUs and NICs hang together, as the driver has it."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    matrix = subprocess.run([smi, "topo", "-m"], capture_output=True, text=True, check=False).stdout
    return [f"     {line}" for line in matrix.splitlines() if line.strip()]


def _slurm() -> str:
    """Whether jobs can be submitted, and what the partition of `params/nodes.yaml` has."""
    nodes = read_nodes()
    if shutil.which("sbatch") is None:
        return _line(False, "Slurm", "no sbatch", "only `launch: slurm` needs it")
    if nodes.launch == "local" or nodes.slurm is None:
        return _line(True, "Slurm", "here; params/nodes.yaml has `launch: local`")
    command = ["sinfo", "--noheader", f"--partition={nodes.slurm.partition}"]
    shown = subprocess.run(
        [*command, "--format=%D nodes of %c cores, %G, at most %l, %T"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    found = f"partition {nodes.slurm.partition}: {'; '.join(shown.splitlines()) or 'not found'}"
    return _line(bool(shown.strip()), "Slurm", found, "name one that `sinfo` lists")
