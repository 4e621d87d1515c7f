"""The emulated network: what its links carry, and that nothing of it stays."""

import subprocess

import pytest
from waiting import PATIENCE_S

from repro.catalog.systems.topology import Level, Topology
from repro.testbed.ability import ENTER

pytestmark = [pytest.mark.testbed, pytest.mark.slow]

_TOPOLOGY = Topology(
    levels=(
        Level(name="node", members=2, link_gbps=0.4),
        Level(name="fabric", members=2, link_gbps=0.1),
    )
)


def _in_a_process_of_its_own(code: str) -> "subprocess.CompletedProcess[str]":
    """Entering namespaces cannot be undone, so the test's own process does not."""
    header = (
        "from repro.catalog.systems.topology import *\nfrom repro.testbed.links import *\n"
        "from repro.testbed.namespaces import *\nfrom repro.testbed.verify import *\n"
        "import sys\nsay = lambda words: print(words, file=sys.stderr)\n"
        f"topology = Topology.model_validate({_TOPOLOGY.model_dump()!r})\n"
    )
    return subprocess.run(
        [*ENTER, "-c", header + code], capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_links_carry_what_they_are_set_to_and_one_that_does_not_is_named() -> None:
    result = _in_a_process_of_its_own(
        "with build_network(topology) as network:\n"
        "    rates = {'node': 0.4, 'fabric': 0.1}\n"
        "    set_rates(network, rates)\n"
        "    found = verify_links(network, rates, topology.gpus, [], say)\n"
        "    for check in found:\n"
        "        print(check.level, *check.carried_gbps)\n"
        "    set_rates(network, {'node': 0.4, 'fabric': 0.05})\n"
        "    verify_links(network, rates, topology.gpus, [found[0]], say, patience_s=2)\n"
    )
    lines = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    for level, rate, flows in (("node", 0.4, 4), ("fabric", 0.1, 2)):
        carried = [float(value) for value in lines[level].split()]
        assert len(carried) == flows
        assert carried == pytest.approx([rate] * flows, rel=0.05)
    assert "fabric link between GPU" in result.stderr
    assert "100.0 Mbit/s it is set to" in result.stderr


def test_links_are_checked_again_only_at_rates_that_no_check_shows() -> None:
    result = _in_a_process_of_its_own(
        "with build_network(topology) as network:\n"
        "    known = []\n"
        "    rates = {'node': 0.4, 'fabric': 0.1}\n"
        "    set_rates(network, rates)\n"
        "    # Ranks of one node do not use the fabric.\n"
        "    (check,) = verify_links(network, rates, 2, known, say)\n"
        "    assert check.level == 'node' and len(known) == 1\n"
        "    for fabric in (0.1, 0.06, 0.12, 0.04):\n"
        "        rates = {'node': 0.4, 'fabric': fabric}\n"
        "        set_rates(network, rates)\n"
        "        _, check = verify_links(network, rates, topology.gpus, known, say)\n"
        "        print(check.set_gbps, check.checked_gbps, len(known))\n"
    )
    rows = [[float(value) for value in line.split()] for line in result.stdout.splitlines()]
    assert rows == [[0.1, 0.1, 2], [0.06, 0.1, 2], [0.12, 0.1, 2], [0.04, 0.04, 3]]


def test_traffic_between_gpus_of_a_node_stays_off_its_nic() -> None:
    result = _in_a_process_of_its_own(
        "import socket\n"
        "with build_network(topology) as network:\n"
        "    set_rates(network, {'node': 1.0, 'fabric': 1.0})\n"
        "    before = [read_uplink_bytes(node) for node in network.nodes]\n"
        "    with inside(network.gpus[1]):\n"
        "        server = socket.create_server((network.addresses[1], 5000))\n"
        "    with inside(network.gpus[0]):\n"
        "        client = socket.create_connection((network.addresses[1], 5000))\n"
        "    client.sendall(bytes(50_000)); client.close()\n"
        "    peer, _ = server.accept(); got = 0\n"
        "    while data := peer.recv(65536): got += len(data)\n"
        "    after = [read_uplink_bytes(node) for node in network.nodes]\n"
        "    print(got, max(b - a for x, y in zip(before, after) for a, b in zip(x, y)))\n"
    )
    received, on_the_nics = map(int, result.stdout.split())
    assert received == 50_000
    # Address resolution is broadcast to all; the 50 kB are not.
    assert on_the_nics < 2_000


def test_two_networks_at_once_do_not_see_each_other() -> None:
    result = _in_a_process_of_its_own(
        "import socket\n"
        "with build_network(topology) as one, build_network(topology) as two:\n"
        "    with inside(one.gpus[3]):\n"
        "        server = socket.create_server((one.addresses[3], 5000))\n"
        "    with inside(two.gpus[0]):\n"
        "        probe = socket.socket(); probe.settimeout(2)\n"
        "        print(probe.connect_ex((two.addresses[3], 5000)))\n"
        "    with inside(one.gpus[0]):\n"
        "        print(socket.create_connection((one.addresses[3], 5000)).fileno() > 0)\n"
    )
    refused, reached = result.stdout.split()
    assert refused != "0"
    assert reached == "True", result.stderr


def test_nothing_is_lost_on_slow_links_nor_sent_again_too_early() -> None:
    # Both ways at once: acknowledgements wait behind 2 MB, for 0.8 s.
    result = _in_a_process_of_its_own(
        "import socket, struct, threading\n"
        "def send(one): one.sendall(bytes(2_000_000))\n"
        "def receive(one):\n"
        "    left = 2_000_000\n"
        "    while left: left -= len(one.recv(min(left, 65536)))\n"
        "with build_network(topology) as network:\n"
        "    set_rates(network, {'node': 0.4, 'fabric': 0.02})\n"
        "    with inside(network.gpus[2]):\n"
        "        server = socket.create_server((network.addresses[2], 5000))\n"
        "    with inside(network.gpus[0]):\n"
        "        client = socket.create_connection((network.addresses[2], 5000))\n"
        "    peer, _ = server.accept()\n"
        "    work = [(send, client), (send, peer), (receive, client), (receive, peer)]\n"
        "    threads = [threading.Thread(target=f, args=(one,)) for f, one in work]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
        "    for one in (client, peer):\n"
        "        # tcp_info: tcpi_rto and tcpi_total_retrans are its 1st and 24th number.\n"
        "        numbers = struct.unpack('8x24I', one.getsockopt(socket.IPPROTO_TCP, 11, 104))\n"
        "        print(numbers[0], numbers[23])\n"
    )
    for line in result.stdout.splitlines():
        timeout_us, sent_again = map(int, line.split())
        assert timeout_us >= 10e6
        # A probe or two of what was sent last.
        assert sent_again <= 3
    assert len(result.stdout.splitlines()) == 2, result.stderr
