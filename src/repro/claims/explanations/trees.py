"""Whether NCCL's trees explain that NICs are busier with 8 than with 4 GPUs (C082 to C084).

A ring of n ranks sends 2(n-1)/n S bytes through each NIC. NCCL may choose a double binary tree
instead; with two nodes, each of its two trees moves half of S up and half of S down between them:
S bytes through each NIC in each direction, for 1.5 S of a ring of 4 ranks.
"""

from dataclasses import dataclass

from repro.catalog.models.volumes import ring_all_reduce_bytes
from repro.catalog.systems.protocols import read_protocols
from repro.claims.published import read_claims
from repro.claims.verdicts import predicted_sample
from repro.results.metrics import iteration_time_s, phase_time_s, utilisation_gbps

_CLAIMS = {"tcp": "C082", "ipoib": "C083", "rdma": "C084"}
_RANKS = 4


@dataclass(frozen=True)
class UtilisationGain:
    """Rate of a NIC with 8 GPUs over that with 4 in weak scaling, mean over models.

    `ring` is predicted with rings for both, `tree` with a tree between the two nodes of 4 GPUs.
    """

    protocol: str
    published: float
    ring: float
    tree: float


def utilisation_gains() -> list[UtilisationGain]:
    """The published gains beside both predictions, a row per protocol."""
    published = {claim.id: claim.value for claim in read_claims()}
    results = predicted_sample("weak_scaling").results
    time, rate = iteration_time_s(results), utilisation_gbps(results)
    sync = phase_time_s(results, "gradient sync").sel(gpus=_RANKS)
    # Bytes of the tree for one byte of the ring.
    share = 1 / ring_all_reduce_bytes(1.0, _RANKS)
    with_tree = time.sel(gpus=_RANKS) - sync * (1 - share)
    tree_rate = rate.sel(gpus=_RANKS) * time.sel(gpus=_RANKS) * share / with_tree
    gains = []
    for name, entry in read_protocols().items():
        value = published[_CLAIMS[name]]
        assert value is not None
        most = rate.sel(gpus=8, protocol=name)
        gains.append(
            UtilisationGain(
                protocol=entry.label,
                published=value,
                ring=float((most / rate.sel(gpus=_RANKS, protocol=name)).mean()),
                tree=float((most / tree_rate.sel(protocol=name)).mean()),
            )
        )
    return gains
