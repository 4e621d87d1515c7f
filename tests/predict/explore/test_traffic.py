"""Volumes of a plan: where they travel, against sums by hand; and plans that do not divide."""

import pytest

from repro.catalog.models.volumes import parameters, ring_all_reduce_bytes
from repro.catalog.parallel.communication_volumes import step_communication
from repro.catalog.parallel.layouts import Layout, read_plan
from repro.catalog.studies.larger_models import gpt_shape
from repro.catalog.systems.clusters import cluster
from repro.errors import ReproError
from repro.predict.explore.jobs.traffic import traffic, traffic_table

_HALF = 2
_A = cluster("pinnacles").topology
_DGX = cluster("dgx-a100").topology
_LARGE = gpt_shape("gpt2-large")


def test_data_parallelism_moves_what_a_ring_all_reduce_does() -> None:
    found = traffic(_LARGE, read_plan("dp=8"), _A).set_index("phase")
    size = parameters("gpt", _LARGE) * _HALF
    sync = found.loc["gradient sync"]
    assert (sync.group, sync.level, sync.calls) == ("data", "fabric", 1)
    assert sync.largest_bytes == size
    assert sync.sent_bytes == pytest.approx(ring_all_reduce_bytes(size, 8))
    assert sync.total_bytes == pytest.approx(8 * ring_all_reduce_bytes(size, 8))


def test_tensor_parallelism_stays_in_a_node_and_replicas_cross_the_fabric() -> None:
    found = traffic(gpt_shape("gpt3-13b"), read_plan("tp=8,dp=2"), _DGX)
    assert set(found[found.group == "tensor"].level) == {"node"}
    assert set(found[found.group == "data"].level) == {"fabric"}
    # Megatron-LM (Shoeybi et al., 2019): four all-reduces of s b h a layer, and the two ends'.
    tensor = found[(found.group == "tensor") & (found.largest_bytes == 2048 * 5120 * _HALF)]
    assert tensor.calls.sum() == 4 * 40 + 2 + 3


def test_a_pipeline_crosses_where_its_stages_do() -> None:
    for plan, level in (("pp=2,tp=4", "node"), ("pp=2,tp=8", "fabric")):
        found = traffic(gpt_shape("gpt3-13b"), read_plan(plan), _DGX)
        assert set(found[found.group == "pipeline"].level) == {level}


def test_zero_moves_more_as_it_shares_more() -> None:
    """Rajbhandari et al., SC 2020, section 7: twice the parameters, with ZeRO-3 three times."""
    shape = gpt_shape("gpt3-2.7b")
    whole = parameters("gpt", shape) * _HALF

    def moved(zero: int) -> float:
        layout = read_plan(f"dp=64,zero={zero}")
        calls = step_communication(shape, layout, 0, _HALF, _HALF)
        weight = {"all_reduce": 2}
        data = [one for one in calls if one.role == "data"]
        return sum(weight.get(one.operation, 1) * one.size_bytes * one.calls for one in data)

    assert [moved(zero) / whole for zero in range(4)] == pytest.approx([2, 2, 2, 3], rel=1e-3)


def test_rings_of_attention_pass_on_keys_and_values() -> None:
    shape = gpt_shape("gpt3-13b")
    calls = step_communication(shape, Layout(context_parallel=4), 0, _HALF, _HALF)
    sent = [one for one in calls if (one.role, one.operation) == ("context", "send")]
    keys_and_values = 2 * 2048 // 4 * 5120 * _HALF
    # Forward 3 hops; backward 3 of keys and values and 3 of their gradients, in 4 calls.
    assert sum(one.size_bytes * one.calls for one in sent) == 40 * 9 * keys_and_values
    assert sum(one.calls for one in sent) == 40 * 7


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("tp=3", "attention_heads 40 is not a multiple of tensor_parallel 3"),
        ("pp=7", "layers 40 is not a multiple of pipeline_parallel x virtual_stages 7"),
        ("vpp=2", "virtual_stages is 2; fix: set pipeline_parallel above 1"),
        ("pp=2,vpp=2,micro_batches=3", "micro_batches 3 is not a multiple of pipeline_parallel 2"),
        ("cp=3", "sequence_length 2048 is not a multiple of 2 x context_parallel 6"),
        ("sp=1", "sequence_parallel is on; fix: set tensor_parallel above 1"),
        ("dp=0", "data_parallel is 0; choose 1 or more"),
        ("zero=4", "zero is 4; choose 0, 1, 2 or 3"),
        ("dp=4481", "takes 4481 GPUs .* the cluster has 4480"),
        ("tp=two", "'tp=two' is not tp=NUMBER"),
        ("tp", "'tp' is not tp=NUMBER"),
        ("tp=2,tp=2", "tp is given twice; fix: remove one"),
        ("ep=2", "unknown plan key 'ep'"),
    ],
)
def test_bad_plans_are_one_line(plan: str, message: str) -> None:
    with pytest.raises(ReproError, match=message) as caught:
        traffic(gpt_shape("gpt3-13b"), read_plan(plan), _DGX)
    assert "\n" not in str(caught.value)


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(ReproError, match=r"gpt2-medium.*gpt3-13b"):
        gpt_shape("gpt5")


def test_the_table_has_a_line_for_each_volume() -> None:
    found = traffic(_LARGE, read_plan("dp=2,zero=1"), _A)
    assert len(traffic_table(found).splitlines()) == 1 + len(found)
    assert "nothing" in traffic_table(traffic(_LARGE, read_plan(""), _A))
