"""NCCL's tree between two nodes."""

from repro.claims.explanations import utilisation_gains


def test_a_tree_moves_fewer_bytes_and_so_gains_more() -> None:
    for gain in utilisation_gains():
        assert 1 < gain.ring < gain.tree < 1.75 + 0.01
    # Where communication is nearly all of the time, the rate is the link's, whatever moves on it.
    by_protocol = {gain.protocol: gain.tree for gain in utilisation_gains()}
    assert by_protocol["RDMA"] > by_protocol["IPoIB"] > by_protocol["TCP/IP"]
