"""Support of emulated nodes by this machine, or else the cause and the fix."""

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from repro.extras import missing_part
from repro.testbed.enter import REFUSED

ENTER = (sys.executable, "-m", "repro.testbed.enter")
NOT_LINUX = f"the testbed needs Linux's network namespaces, and this is {sys.platform}"
_SECCOMP_FILTER = "2"
_SYSCTL = "let an administrator run `sysctl -w {}`"


@dataclass(frozen=True)
class Ability:
    """Support of the testbed's network: whether it works, and how, or the cause and the fix."""

    works: bool
    found: str


def testbed_ability() -> Ability:
    """Build a small network in a separate process, because entering namespaces cannot be undone."""
    if sys.platform != "linux":
        return Ability(False, NOT_LINUX)
    if find_spec("pyroute2") is None:
        return Ability(False, str(missing_part("pyroute2")))
    result = subprocess.run(
        [*ENTER, "-m", "repro.testbed.probe"], capture_output=True, text=True, check=False
    )
    words = result.stderr.strip().splitlines()[-1:]
    if result.returncode == 0:
        who = "as root" if os.geteuid() == 0 else "in a user namespace"
        return Ability(True, f"{who}, {result.stdout.strip()}")
    if result.returncode == REFUSED:
        return Ability(False, explain_refusal(words[0]))
    return Ability(False, words[0] if words else f"the probe ended with {result.returncode}")


def explain_refusal(words: str, system: Path = Path("/proc")) -> str:
    """Explain in one line why the kernel refused `repro.testbed.enter`, and the fix.

    Parameters
    ----------
    words
        Last line of that program: the call and the error number.
    system
        Folder where procfs is mounted.
    """
    call, _, number = words.rpartition(" ")
    said = f"{call}: {os.strerror(int(number))}"
    cause, fix = _cause(int(number), system)
    return (
        f"the testbed needs network namespaces, and user {os.geteuid()} may not create any here "
        f"({said}): {cause}; fix: {fix}"
    )


def _cause(number: int, system: Path) -> tuple[str, str]:
    """Return the cause that forbids namespaces, as the system shows it, and the fix."""
    for name, setting in (
        ("user/max_user_namespaces", "user.max_user_namespaces=15000"),
        ("user/max_net_namespaces", "user.max_net_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "kernel.unprivileged_userns_clone=1"),
    ):
        if _read(system / "sys" / name) == "0":
            return f"{name.replace('/', '.')} is 0", _SYSCTL.format(setting)
    if number == errno.ENOSPC:
        return (
            "all namespaces that user.max_user_namespaces allows are in use",
            _SYSCTL.format("user.max_user_namespaces=15000"),
        )
    if _read(system / "sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts unprivileged user namespaces, as Ubuntu does since 23.10",
            _SYSCTL.format("kernel.apparmor_restrict_unprivileged_userns=0"),
        )
    if _status(system, "Seccomp") == _SECCOMP_FILTER:
        return (
            "a seccomp filter forbids it, as containers have by default",
            "start the container with `docker run --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined` (podman has the same options)",
        )
    if not (system / "self/ns/user").exists():
        return "this kernel has no user namespaces (CONFIG_USER_NS)", "run as root"
    return "the system does not show why", "run as root, or ask who administers this machine"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _status(system: Path, field: str) -> str:
    """Return a field of this process's status; the refused process has the same filters."""
    for line in _read(system / "self/status").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return ""
