"""Build the smallest network of two emulated GPUs, and say on stdout what this kernel has for it.

Run as a program, behind `repro.testbed.enter`; what is missing is the last line on stderr.
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
    """Print whether links have a latency too; exit with status 1 where there are no links."""
    try:
        with build_network(_TOPOLOGY) as network:
            set_rates(network, {level.name: _GBPS for level in _TOPOLOGY.levels})
            print("with latency" if network.netem else "without latency (the kernel lacks netem)")
    except NotRunHere as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
