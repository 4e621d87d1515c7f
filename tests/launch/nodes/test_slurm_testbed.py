"""The Slurm that other tests run on: its nodes are the network's, and nothing of it stays."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_testbed import SlurmTestbed, needs_slurm, slurm_testbed
from waiting import wait_until

from repro.testbed.links import read_uplink_bytes

pytestmark = [pytest.mark.slow, pytest.mark.testbed, pytest.mark.root, needs_slurm]

_LINK_GBPS = 0.2
_SENT_BYTES = 20_000_000
# Task 0 receives, task 1 sends; the receiver says how long it took.
_TRAFFIC = f"""\
import os, socket, time
if os.environ["SLURM_PROCID"] == "0":
    with socket.create_server(("node0", 5000)) as server, server.accept()[0] as peer:
        received, begin = 0, time.monotonic()
        while chunk := peer.recv(1 << 20):
            received += len(chunk)
        print(received, time.monotonic() - begin)
else:
    for attempt in range(100):
        try:
            peer = socket.create_connection(("node0", 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    peer.sendall(bytes({_SENT_BYTES}))
    peer.close()
"""
# A process that leaves its session, as a daemon does, and its parent.
_DETACHED = "#!/bin/sh\nsetsid sh -c 'sleep 600 & sleep 600' &\ntouch started\nsleep 600\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmTestbed]:
    with slurm_testbed(tmp_path_factory.mktemp("slurm"), link_gbps=_LINK_GBPS) as testbed:
        yield testbed


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name shorter than a test's: daemons have sockets in it."""
    return tmp_path_factory.mktemp("slurm")


def _processes(folder: Path) -> list[str]:
    """Command lines of all processes that know the folder's Slurm."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"SLURM_CONF={folder}/".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def _sleeping(folder: Path) -> int:
    return sum(line.split()[0].endswith("sleep") for line in _processes(folder) if line.split())


def test_four_nodes_have_their_names_and_interfaces(slurm: SlurmTestbed) -> None:
    assert slurm.node_states() == {f"node{index}": "idle" for index in range(4)}
    show = "echo $(hostname) $(ls /sys/class/net) $(getent hosts node3)"
    result = slurm.run(["srun", "-N4", "sh", "-c", show])
    lines = sorted(result.stdout.splitlines())
    assert lines == [f"node{index} lo up 10.88.0.4 node3" for index in range(4)], result.stderr


def test_traffic_of_a_step_crosses_the_shaped_links(slurm: SlurmTestbed) -> None:
    before = [read_uplink_bytes(gpu) for gpu in slurm.network.gpus]
    result = slurm.run(["srun", "-N2", "-w", "node0,node1", sys.executable, "-c", _TRAFFIC])
    after = [read_uplink_bytes(gpu) for gpu in slurm.network.gpus]
    assert result.returncode == 0, result.stderr
    received, seconds = result.stdout.split()
    assert int(received) == _SENT_BYTES
    # A busy machine sends slower, by any factor; an unshaped link would be a hundred times faster.
    assert _SENT_BYTES * 8e-9 / float(seconds) < 1.03 * _LINK_GBPS
    moved = [(now[0] - was[0], now[1] - was[1]) for was, now in zip(before, after, strict=True)]
    assert moved[0][0] == pytest.approx(_SENT_BYTES, rel=0.05)
    assert moved[1][1] == pytest.approx(_SENT_BYTES, rel=0.05)
    assert max(*moved[2], *moved[3], *moved[4]) < 0.05 * _SENT_BYTES


def test_a_signal_to_a_command_reaches_it(slurm: SlurmTestbed) -> None:
    process = slurm.popen(["sh", "-c", "trap 'echo caught; exit 7' TERM; echo up; sleep 60 & wait"])
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.stdout.readline() == "caught\n"
    assert process.wait() == 7


def test_nothing_outlives_the_context(folder: Path) -> None:
    (folder / "job.sh").write_text(_DETACHED)
    with slurm_testbed(folder, nodes=1) as slurm:
        slurm.submit("job.sh")
        slurm.run(["sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &"])
        waiting = slurm.popen(["srun", "-N1", "-n1", "sleep", "600"])
        # Three of the job, one detached on the login node, one of the step.
        wait_until(lambda: _sleeping(folder) >= 5, lambda: _sleeping(folder))
    assert waiting.poll() == -signal.SIGKILL
    assert _processes(folder) == []


def test_nothing_outlives_a_killed_test(folder: Path) -> None:
    (folder / "job.sh").write_text(_DETACHED)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom slurm_testbed import slurm_testbed\n"
        "with slurm_testbed(Path(sys.argv[1]), nodes=1) as slurm:\n"
        "    slurm.submit('job.sh')\n    slurm.popen(['sleep', '600'])\n    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parents[2]
    )
    wait_until((folder / "started").exists)
    assert _processes(folder)
    process.kill()
    process.wait()
    wait_until(lambda: not _processes(folder), lambda: _processes(folder))
