"""Entering namespaces: only a process with one thread may, so the program that does stays small."""

import os
import subprocess
import sys

import pytest

from repro.testbed.ability import ENTER
from repro.testbed.enter import REFUSED

_LOOK = """
import os, sys
before = set(sys.modules)
import repro.testbed.enter
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(len(os.listdir("/proc/self/task")), *sorted(new - set(sys.stdlib_module_names)))
print(*sorted(name for name in sys.modules if name.startswith("repro")))
"""


def test_it_has_one_thread_and_imports_nothing_that_could_start_another() -> None:
    result = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True
    )
    counted, modules = result.stdout.splitlines()
    assert counted == "1 repro"
    assert modules == "repro repro.testbed repro.testbed.enter repro.testbed.kernel"


@pytest.mark.testbed
def test_behind_it_is_root_in_a_network_of_its_own() -> None:
    code = "import os; print(os.geteuid(), os.readlink('/proc/self/ns/net'))"
    result = subprocess.run([*ENTER, "-c", code], capture_output=True, text=True, check=True)
    user, network = result.stdout.split()
    assert user == "0"
    assert network != os.readlink("/proc/self/ns/net")


def test_where_the_kernel_refuses_it_says_what_and_nothing_runs(no_namespaces: list[str]) -> None:
    refused = subprocess.run(
        [*no_namespaces, *ENTER, "-c", "print('never')"], capture_output=True, text=True
    )
    assert refused.returncode == REFUSED
    assert refused.stdout == ""
    assert refused.stderr == "unshare 1\n"
