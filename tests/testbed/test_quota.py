"""CPU quotas: that they hold, for one and for several, and that none is left behind."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.errors import ReproError
from repro.testbed.ownership import GLOB, is_leftover, owned_name
from repro.testbed.quota import cores_per_rank, create_quotas, quota_parent, usable_cores
from repro.testbed.verify import verify_quotas

needs_cgroup = pytest.mark.skipif(quota_parent() is None, reason="no writable cgroup here")

_BURN = (
    "import sys, os\nfrom pathlib import Path\n"
    "Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
    "from repro.testbed.verify import measure_cpu_share\n"
    "print(measure_cpu_share())\n"
)


def _share(group: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _BURN, str(group)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@needs_cgroup
def test_four_ranks_get_their_quota_each() -> None:
    cores = 0.8 * usable_cores() / 8
    with create_quotas(4, cores) as quotas:
        burning = [_share(path) for path in quotas.paths]
        shares = [float(process.communicate(timeout=60)[0]) for process in burning]
    assert shares == pytest.approx([cores] * 4, rel=0.1)


@needs_cgroup
def test_groups_of_a_killed_process_are_removed_by_the_next() -> None:
    hold = (
        "from repro.testbed.quota import create_quotas\nimport time\n"
        "with create_quotas(2, 0.2):\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    parent = quota_parent()
    assert parent is not None
    (left,) = [g for g in parent.glob(GLOB) if g.name.startswith(f"repro-{process.pid}-")]
    with create_quotas(1, 0.2):
        assert left.exists(), "a living process's group was taken"
    process.kill()
    process.wait()
    with create_quotas(1, 0.2):
        assert not left.exists()


@needs_cgroup
def test_nothing_is_left_after_the_context() -> None:
    with create_quotas(2, 0.2) as quotas:
        group = quotas.paths[0].parent
        assert group.exists()
    assert not group.exists()


def test_a_share_off_its_quota_names_the_rank() -> None:
    verify_quotas(0.2, [0.2, 0.205])
    with pytest.raises(ReproError, match=r"rank 1 computes with 0\.230 cores"):
        verify_quotas(0.2, [0.2, 0.23])


def test_quotas_leave_the_network_stack_its_part() -> None:
    assert cores_per_rank(8) * 8 <= 0.8 * usable_cores()
    assert cores_per_rank(1) <= 1.0


def test_ownership_tells_the_living_from_the_dead() -> None:
    assert not is_leftover(owned_name())
    pid, start = owned_name().removeprefix("repro-").split("-")
    assert is_leftover(f"repro-{pid}-{int(start) + 1}"), "a reused process id is another process"
    ended = subprocess.Popen(["true"])
    ended.wait()
    time.sleep(0.01)
    assert is_leftover(f"repro-{ended.pid}-{start}")
