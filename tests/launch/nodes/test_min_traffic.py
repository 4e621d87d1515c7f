"""What nodes must send at least, against closed forms."""

from dataclasses import replace
from pathlib import Path

from made_up import made_up_records, small_run

from repro.catalog.models.expert_volumes import held_parameters
from repro.catalog.models.open_models import DecoderShape
from repro.collectives.records import CollectiveSweep, SweepRecord, Timing
from repro.launch.nodes.min_traffic import min_inter_node_bytes
from repro.observe.messages import MessageEnd
from repro.results.schema import coordinates

_ITERATIONS, _GRADIENTS = 6, 40
_HOSTS = ["a", "a", "b", "b"]


def test_of_an_all_reduce_every_node_sends_the_size() -> None:
    records = made_up_records(coordinates("bert-large", "rdma", 4))
    run = small_run("bert", Path("corpus"))
    expected = _ITERATIONS * _GRADIENTS
    assert min_inter_node_bytes(run, records, _HOSTS) == {"a": expected, "b": expected}
    shared = replace(run, distributed_optimizer=True)
    assert min_inter_node_bytes(shared, records, _HOSTS) == {"a": expected / 2, "b": expected / 2}


def test_of_experts_on_other_ranks_only_what_all_have_is_reduced_by_all() -> None:
    run = small_run("gpt", Path("corpus"), name="olmoe-1b-7b")
    assert isinstance(run.shape, DecoderShape)
    common, own = held_parameters(run.shape, 2)
    records = made_up_records(coordinates("olmoe-1b-7b", "rdma", 4))
    found = min_inter_node_bytes(replace(run, expert_parallel=2), records, _HOSTS)
    expected = int(_ITERATIONS * _GRADIENTS * common / (common + own))
    assert found == {"a": expected, "b": expected}


def test_within_a_node_nothing_is_sent() -> None:
    records = made_up_records(coordinates("bert-large", "rdma", 4))
    assert min_inter_node_bytes(small_run("bert", Path("corpus")), records, ["a"] * 4) == {"a": 0}
    # Replicas of a stage are neighbours, and here in one node.
    staged = replace(small_run("bert", Path("corpus")), pipeline_parallel=2)
    assert min_inter_node_bytes(staged, records, _HOSTS) == {"a": 0, "b": 0}


def test_a_sweep_needs_its_all_reduces_over_all_ranks() -> None:
    sweep = CollectiveSweep(("all_reduce", "broadcast"), (8,), ("world",), 2, "fp32", 1, 3, 3, 1.0)
    timing = Timing("world", "all_reduce", False, 1000, 1000, 5, (0.1, 0.1, 0.1), 0.0, 0.0)
    others = (replace(timing, layout="node"), replace(timing, collective="broadcast"))
    record = SweepRecord(0, {"world": 4}, (timing, replace(timing, in_place=True), *others))
    assert min_inter_node_bytes(sweep, [record] * 4, _HOSTS) == {"a": 30_000, "b": 30_000}
    assert min_inter_node_bytes(sweep, [record] * 4, ["a"] * 4) == {"a": 0}


def test_pipelines_send_their_messages() -> None:
    records = list(made_up_records(coordinates("bert-large", "rdma", 4)))
    run = replace(small_run("bert", Path("corpus")), pipeline_parallel=4)
    end = MessageEnd(0, "forward-send", 0, "forward", 2, 1000, True, 1.0, 2.0)
    received = replace(end, peer=0, sends=False)
    records[1] = replace(records[1], messages=(end, received, replace(end, peer=0)))
    assert min_inter_node_bytes(run, records, _HOSTS) == {"a": 1000, "b": 0}
