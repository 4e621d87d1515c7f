"""NCCL's tree between two nodes."""

from repro.claims.explanations import utilisation_gains


def test_a_tree_moves_fewer_bytes_and_so_gains_more() -> None:
    gains = utilisation_gains()
    assert ((gains.ring > 1) & (gains.ring < gains.tree) & (gains.tree < 1.75 + 0.01)).all()
    # Where communication is nearly all of the time, the rate is the link's, whatever moves on it.
    assert gains.tree["RDMA"] > gains.tree["IPoIB"] > gains.tree["TCP/IP"]
