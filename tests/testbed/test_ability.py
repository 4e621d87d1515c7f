"""Where namespaces are forbidden, one line says by what, with the mend."""

import subprocess
import sys
from pathlib import Path

import pytest

from repro.testbed.ability import explain_refusal

_SYSCTLS = {
    "user/max_user_namespaces": "96365",
    "user/max_net_namespaces": "96365",
    "kernel/unprivileged_userns_clone": "1",
    "kernel/apparmor_restrict_unprivileged_userns": "0",
}


def _explained(folder: Path, words: str, seccomp: int = 0, **changed: str) -> str:
    """What is said of a refusal on a system with these settings."""
    settings = _SYSCTLS | {name.replace("__", "/"): value for name, value in changed.items()}
    for name, value in settings.items():
        (folder / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sys" / name).write_text(f"{value}\n")
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/user").touch()
    (folder / "self/status").write_text(f"Name:\tpython\nSeccomp:\t{seccomp}\n")
    return explain_refusal(words, folder)


@pytest.mark.parametrize(
    ("words", "seccomp", "changed", "cause", "mend"),
    [
        (
            "unshare 28",
            0,
            {"user__max_user_namespaces": "0"},
            "unshare: No space left on device): user.max_user_namespaces is 0",
            "`sysctl -w user.max_user_namespaces=15000`",
        ),
        (
            "unshare 1",
            0,
            {"kernel__unprivileged_userns_clone": "0"},
            "kernel.unprivileged_userns_clone is 0",
            "`sysctl -w kernel.unprivileged_userns_clone=1`",
        ),
        (
            "/proc/self/uid_map 1",
            0,
            {"kernel__apparmor_restrict_unprivileged_userns": "1"},
            "/proc/self/uid_map: Operation not permitted): AppArmor restricts",
            "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
        ),
        (
            "unshare 1",
            2,
            {},
            "a seccomp filter forbids it",
            "`docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined`",
        ),
        ("unshare 28", 0, {}, "all namespaces that user.max_user_namespaces allows", "sysctl -w"),
        ("unshare 13", 0, {}, "Permission denied): the system does not show why", "run as root"),
    ],
)
def test_the_cause_is_told_by_what_the_system_shows(
    tmp_path: Path, words: str, seccomp: int, changed: dict[str, str], cause: str, mend: str
) -> None:
    said = _explained(tmp_path, words, seccomp, **changed)
    assert cause in said
    assert mend in said
    assert "\n" not in said


def test_a_kernel_without_user_namespaces(tmp_path: Path) -> None:
    assert "CONFIG_USER_NS" in explain_refusal("unshare 22", tmp_path)


_ASK = "from repro.testbed.ability import *; a = testbed_ability(); print(a.works, a.found)"


def test_a_filter_as_dockers_is_recognised(no_namespaces: list[str]) -> None:
    result = subprocess.run(
        [*no_namespaces, sys.executable, "-c", _ASK], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("False the testbed needs network namespaces")
    assert "seccomp" in result.stdout


@pytest.mark.testbed
def test_where_nothing_forbids_it_the_network_is_built() -> None:
    result = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
    assert result.stdout.startswith("True "), result.stderr
