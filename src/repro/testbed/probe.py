"""Probe of this kernel, which builds the smallest network of two emulated GPUs.

Run as a program by `repro.testbed.enter`. It prints supported features on stdout; an error is the
last line on stderr.
"""

import sys

from repro.catalog.systems.topology import Level, Topology
from repro.errors import NotRunHere
from repro.testbed.links import build_network, set_rates

_GBPS = 1.0
_TOPOLOGY = Topology(
    levels=(
        Level(name="node", members=1, link_gbps=_GBPS),
        Level(name="fabric", members=2, link_gbps=_GBPS),
    )
)


def main() -> None:
    """Print whether links can have a latency; exit with status 1 if there are no links."""
    try:
        with build_network(_TOPOLOGY) as network:
            set_rates(network, {level.name: _GBPS for level in _TOPOLOGY.levels})
            print("with latency" if network.netem else "without latency (the kernel lacks netem)")
    except NotRunHere as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
