"""What this machine can do, and how to make it do more."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from repro.paths import ROOT
from repro.testbed.quota import quota_parent, usable_cores

_SCALING_RANKS = 8
_NEEDED_GIB = 3
_NEEDED_DISK_GIB = 4


def examine() -> list[str]:
    """One line per ability: `yes` or `NO `, what was found, and the mend where something lacks."""
    return [
        _namespaces(),
        _quotas(),
        _memory(),
        _disk(),
        _gpus(),
        _nics(),
        _slurm(),
    ]


def _line(works: bool, what: str, found: str, mend: str = "") -> str:
    return f"{'yes' if works else 'NO '}  {what}: {found}{'' if works else '; ' + mend}"


def _namespaces() -> str:
    # In a process of its own: entering a user namespace cannot be undone.
    probe = (
        "from repro.testbed.namespaces import *\nfrom repro.catalog.topology import *\n"
        "from repro.testbed.links import *\nbecome_network_admin()\n"
        "t = Topology(levels=(Level(name='node', members=1, link_gbps=1), "
        "Level(name='fabric', members=2, link_gbps=1)))\n"
        "with build_network(t) as n:\n"
        "    set_rates(n, {'node': 1, 'fabric': 1})\n"
        "    print('with latency' if n.netem else 'without latency (the kernel lacks netem)')\n"
    )
    result = _python(probe)
    who = "as root" if os.geteuid() == 0 else "in a user namespace"
    if result.returncode == 0:
        return _line(True, "emulated network", f"{who}, {result.stdout.strip()}")
    reason = result.stderr.strip().splitlines()[-1].rpartition("Error: ")[2]
    return _line(False, "emulated network", reason, "the testbed cannot run here")


def _python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def _quotas() -> str:
    cores, parent = usable_cores(), quota_parent()
    if parent is not None:
        return _line(True, "CPU quotas", f"{cores} cores, cgroups below {parent}")
    return _line(
        False,
        "CPU quotas",
        f"{cores} cores, no writable cgroup: no more than {cores} emulated GPUs",
        "run as root, or in `systemd-run --user --scope -p Delegate=yes`",
    )


def _memory() -> str:
    fields = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
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


def _nics() -> str:
    rdma = Path("/sys/class/infiniband")
    devices = sorted(path.name for path in rdma.iterdir()) if rdma.is_dir() else []
    interfaces = sorted(p.name for p in Path("/sys/class/net").iterdir() if p.name != "lo")
    found = f"{', '.join(interfaces) or 'none'}; RDMA devices: {', '.join(devices) or 'none'}"
    return _line(bool(devices), "NICs", found, "measuring real RDMA needs such a device")


def _slurm() -> str:
    found = shutil.which("sbatch")
    return _line(found is not None, "Slurm", found or "no sbatch", "only clusters need it")
