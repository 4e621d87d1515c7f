"""What the ranks of a node had to send to other nodes, whatever algorithm carried it.

The least that any collective can do, so that counters which saw less prove that the traffic took
another way: rings, trees and reductions in the network all send more, or as much.
"""

from collections import Counter
from collections.abc import Sequence

from repro.catalog.models.expert_volumes import held_parameters
from repro.catalog.models.open_models import DecoderShape
from repro.collectives.records import CollectiveSweep, SweepRecord
from repro.train.records import RankRecord, TrainingRun


def needed_bytes(
    run: TrainingRun | CollectiveSweep,
    records: Sequence[RankRecord | SweepRecord],
    hosts: Sequence[str],
) -> dict[str, float]:
    """Bytes by node, over all that was recorded.

    In an all-reduce of S bytes over several nodes each node sends S at least: what it adds to the
    sum is as large, and who sends no part of that has to hand on the sum. Of a reduce-scatter a
    node sends at least half of S: all but its own part. Pipelines send their messages. Of a sweep
    the all-reduces over all ranks are counted.

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
    """What a rank reduced with all others, in all repeats of all sizes."""
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
    # Megatron-Core's order: a stage's ranks are neighbours, those of one replica first.
    for first in (begin + part for begin in range(0, len(hosts), stage) for part in range(split)):
        group = set(hosts[first : first // stage * stage + stage : split])
        for host in group if len(group) > 1 else ():
            reduced = records[first].gradient_bytes * len(records[first].start_s)
            needed[host] += int(share * reduced * _reduced_by_all(run))
    return {host: float(bytes_) for host, bytes_ in needed.items()}


def _reduced_by_all(run: TrainingRun) -> float:
    """The part of a rank's gradients that all replicas have. What experts add, whose replicas may
    all be on one node, is not counted."""
    if run.expert_parallel == 1 or not isinstance(run.shape, DecoderShape):
        return 1.0
    common, experts = held_parameters(run.shape, run.expert_parallel)
    return common / (common + experts)
