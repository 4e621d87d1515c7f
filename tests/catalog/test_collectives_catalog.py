"""Sweeps of collectives as a notebook asks for them, and the topologies they run on."""

import pytest
from pydantic import ValidationError

from repro.catalog.studies.collectives import (
    COLLECTIVES,
    SweepProfile,
    read_collectives_sweep,
    select_sweep,
)
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.topology import Level, Topology
from repro.errors import ReproError

_GPUS = read_collectives_sweep().clusters["pinnacles"].gpus
_KNOWN_GPUS = ", ".join(str(gpus) for gpus in _GPUS)


def test_all_is_what_the_file_says() -> None:
    found = select_sweep("pinnacles")
    assert found.protocols == ("rdma", "ipoib", "tcp")
    assert found.gpus == _GPUS
    assert sorted(found.collectives) == sorted(COLLECTIVES)
    assert found.source == "testbed"
    assert found.cluster == cluster("pinnacles")
    # From one number to the report's largest.
    assert (found.profile.sizes_bytes[0], found.profile.sizes_bytes[-1]) == (8, 192 * 2**20)


@pytest.mark.parametrize("gpus", ["2,8", [2, 8], ("2", "8")])
def test_some_of_each(gpus: object) -> None:
    found = select_sweep(
        "pinnacles",
        "predicted",
        "tcp, rdma",
        gpus,  # type: ignore[arg-type]
        ["send_recv", "all_reduce"],
        "ci",
    )
    assert found.protocols == ("tcp", "rdma")
    assert found.gpus == (2, 8)
    assert found.collectives == ("send_recv", "all_reduce")
    assert (found.source, found.profile_name) == ("predicted", "ci")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"cluster_name": "frontera"},
            "unknown cluster 'frontera'; choose from: pinnacles, big-red-200",
        ),
        ({"protocol": "quic"}, "unknown protocol 'quic'; choose from: rdma, ipoib, tcp"),
        (
            {"cluster_name": "big-red-200", "protocol": "tcp"},
            "unknown protocol 'tcp'; choose from: rdma",
        ),
        ({"gpus": "2,16"}, f"unknown number of GPUs '16'; choose from: {_KNOWN_GPUS}"),
        ({"gpus": 3}, f"unknown number of GPUs '3'; choose from: {_KNOWN_GPUS}"),
        (
            {"collectives": "all_reduce,gossip"},
            f"unknown collective 'gossip'; choose from: {', '.join(COLLECTIVES)}",
        ),
        ({"profile": "huge"}, "unknown profile 'huge'; choose from: default, thorough, ci"),
        (
            {"source": "dream"},
            "unknown source 'dream'; choose from: paper, reference, predicted, testbed, cluster",
        ),
    ],
)
def test_unknown_values_are_refused_in_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ReproError) as refused:
        select_sweep(**({"cluster_name": "pinnacles"} | arguments))  # type: ignore[arg-type]
    text = str(refused.value)
    assert "\n" not in text
    # The order of the collectives is the profile's.
    said, known = text.split("; choose from: ")
    wanted, names = message.split("; choose from: ")
    assert said == wanted
    assert sorted(known.split(", ")) == sorted(names.split(", "))


def test_sizes_ascend_and_collectives_are_known() -> None:
    good = read_collectives_sweep().profiles["ci"].model_dump()
    with pytest.raises(ValidationError, match="sizes do not ascend; fix: sort them without"):
        SweepProfile.model_validate({**good, "sizes_bytes": (8, 8)})
    with pytest.raises(ReproError, match="unknown collective 'gossip'"):
        SweepProfile.model_validate({**good, "collectives": ("gossip",)})


def test_protocols_and_gpus_are_the_clusters_own() -> None:
    for name, swept in read_collectives_sweep().clusters.items():
        entry = cluster(name)
        assert max(swept.gpus) <= entry.topology.gpus
        assert set(swept.protocols) <= {*entry.protocols, "rdma"}


_TREE = Topology(
    levels=(
        Level(name="package", members=2, link_gbps=400),
        Level(name="node", members=3, link_gbps=200),
        Level(name="fabric", members=5, link_gbps=100),
    )
)


@pytest.mark.parametrize(
    ("gpus", "nodes"), [(1, 1), (5, 1), (6, 1), (7, 2), (12, 2), (13, 3), (30, 5), (99, 5)]
)
def test_the_first_gpus_are_whole_nodes(gpus: int, nodes: int) -> None:
    found = _TREE.truncated_to(gpus)
    assert found.nodes == nodes
    assert found.gpus_per_node == 6
    assert found.gpus == 6 * nodes
    assert [level.link_gbps for level in found.levels] == [400, 200, 100]
    for rank in range(min(gpus, found.gpus)):
        assert found.node_of(rank) == _TREE.node_of(rank)
