"""Lower bound on the bytes that the ranks of a node send to other nodes, with any algorithm.

Rings, trees and reductions in the network send as much or more. Counters that saw less prove that
the traffic took another network.
"""

from collections import Counter
from collections.abc import Sequence

from repro.catalog.models.expert_volumes import held_parameters
from repro.catalog.models.open_models import DecoderShape
from repro.collectives.records import CollectiveSweep, SweepRecord
from repro.train.records import RankRecord, TrainingRun


def min_inter_node_bytes(
    run: TrainingRun | CollectiveSweep,
    records: Sequence[RankRecord | SweepRecord],
    hosts: Sequence[str],
) -> dict[str, float]:
    """Return bytes by node, over everything that was recorded.

    In an all-reduce of S bytes over several nodes, each node sends at least S: its own summand, or
    the sum. In a reduce-scatter it sends at least S / 2, all but its own part. Pipelines send their
    messages. In a sweep, the all-reduces over all ranks count.

    Parameters
    ----------
    records
        In the order of ranks.
    hosts
        Each rank's node.
    """
    if len(set(hosts)) == 1:
        return {hosts[0]: 0.0}
    if isinstance(run, CollectiveSweep):
        swept = [record for record in records if isinstance(record, SweepRecord)]
        return dict.fromkeys(hosts, _reduced_bytes(swept[0]))
    trained = [record for record in records if isinstance(record, RankRecord)]
    return _training_bytes(run, trained, hosts)


def _reduced_bytes(record: SweepRecord) -> float:
    """Return what a rank reduced with all others, in all repeats of all sizes."""
    return sum(
        float(found.size_bytes) * found.calls * len(found.time_s)
        for found in record.measurements
        if (found.collective, found.layout) == ("all_reduce", "world")
    )


def _training_bytes(
    run: TrainingRun, records: Sequence[RankRecord], hosts: Sequence[str]
) -> dict[str, float]:
    needed: Counter[str] = Counter(dict.fromkeys(hosts, 0))
    for record in records:
        for end in record.messages:
            if end.sends and hosts[end.peer] != hosts[record.rank]:
                needed[hosts[record.rank]] += end.size_bytes
    split = run.tensor_parallel
    stage = len(hosts) // run.pipeline_parallel
    share = 0.5 if run.distributed_optimizer else 1.0
    # In Megatron-Core's order the ranks of a stage are neighbours, those of a replica first.
    for first in (begin + part for begin in range(0, len(hosts), stage) for part in range(split)):
        group = set(hosts[first : first // stage * stage + stage : split])
        for host in group if len(group) > 1 else ():
            reduced = records[first].gradient_bytes * len(records[first].start_s)
            needed[host] += int(share * reduced * _reduced_by_all(run))
    return {host: float(bytes_) for host, bytes_ in needed.items()}


def _reduced_by_all(run: TrainingRun) -> float:
    """Return the part of a rank's gradients that all replicas have.

    Gradients of experts do not count, because their replicas may all be on one node.
    """
    if run.expert_parallel == 1 or not isinstance(run.shape, DecoderShape):
        return 1.0
    common, experts = held_parameters(run.shape, run.expert_parallel)
    return common / (common + experts)
