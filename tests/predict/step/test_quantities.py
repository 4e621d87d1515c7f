"""Volumes, FLOPs and rates against the literature's closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from examples import CALIBRATED, GPT, IDEAL, machine_of, machines, rows, total, workloads
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import embedding_parameters, stack_parameters
from repro.predict.network.machine import Machine
from repro.predict.step.memory import memory
from repro.predict.step.quantities import MEMORY, PHASES, iteration_times_s, quantities
from repro.predict.workload import Array, Plan, Workload, in_blocks, valid

_DGX = machine_of("dgx-a100")
_L, _H, _S, _V = 24, 1024, 1024, 51200
_BATCH = 64


def _of(plan: Plan, shape: Shape = GPT) -> dict[str, Array]:
    return quantities(rows(plan, shape), _DGX, CALIBRATED)


def _operations(found: dict[str, Array], utilisation: str, gpus: int = 1) -> Array:
    """FLOPs of an iteration: utilisation x time x peak."""
    return found[utilisation] * found["iteration_time_s"] * gpus * 312e12


def _formula(attention: float, logits: float) -> float:
    """Layers' products with weights times 1 + s/(x h) + v/(y L h)."""
    more = _S / (attention * _H) + _V / (logits * _L * _H)
    return _BATCH * _L * _S * _H**2 * (1 + more)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_model_flops(recompute: str) -> None:
    # Narayanan et al., SC 2021, appendix: what is recomputed does not count.
    found = _of(Plan(global_batch_size=_BATCH, recompute=recompute))
    assert _operations(found, "mfu") == pytest.approx(72 * _formula(6, 12), rel=1e-12)


def test_hardware_flops_with_full_recomputation() -> None:
    # SC 2021, equation 3.
    found = _of(Plan(global_batch_size=_BATCH, recompute="full"))
    assert _operations(found, "hfu") == pytest.approx(96 * _formula(6, 16), rel=1e-12)


def test_hardware_flops_with_selective_recomputation() -> None:
    # Korthikanti et al., MLSys 2023, equation 8: s/6h becomes s/3h.
    found = _of(Plan(global_batch_size=_BATCH, recompute="selective"))
    assert _operations(found, "hfu") == pytest.approx(72 * _formula(3, 12), rel=1e-12)


def test_hardware_flops_without_recomputation_are_the_models() -> None:
    found = _of(Plan(global_batch_size=_BATCH))
    assert found["hfu"] == found["mfu"]


def test_flops_do_not_depend_on_the_split() -> None:
    plan = Plan(
        global_batch_size=_BATCH, data_parallel=2, tensor_parallel=4, pipeline_parallel=[1, 2]
    )
    for number, gpus in enumerate([8, 16]):
        work = _operations(_of(plan), "mfu", gpus)[number]
        assert work == pytest.approx(72 * _formula(6, 12), rel=1e-12)


def test_gradients_move_twice_their_size_but_for_the_own_share() -> None:
    d = np.array([1.0, 2.0, 4.0, 64.0])
    found = _of(Plan(global_batch_size=_BATCH, data_parallel=d, gradient_bytes=4))
    size = 4 * (stack_parameters("gpt", GPT) + embedding_parameters(GPT))
    assert found["gradient_sync_bytes"] == pytest.approx(2 * (d - 1) / d * size, rel=1e-12)


@pytest.mark.parametrize(("recompute", "all_reduces"), [("none", 4), ("selective", 4), ("full", 6)])
@pytest.mark.parametrize("stages", [1, 4])
def test_tensor_parallelism_moves_all_reduces(
    recompute: str, all_reduces: int, stages: int
) -> None:
    # SC 2021, section 3.2: 8 b s h (t-1)/t elements per layer and micro batch, in four all-reduces.
    t = np.array([1.0, 2.0, 4.0, 8.0])
    plan = Plan(
        global_batch_size=_BATCH,
        micro_batch_size=2,
        tensor_parallel=t,
        pipeline_parallel=stages,
        recompute=recompute,
    )
    elements = all_reduces * 2 * 2 * _S * _H * (t - 1) / t
    expected = 2 * elements * _L / stages * _BATCH / 2
    assert _of(plan)["tensor_parallel_bytes"] == pytest.approx(expected, rel=1e-12)


def test_tensor_parallelism_of_t5_moves_each_stacks_tokens() -> None:
    # An encoder layer has two all-reduces each way of its tokens, a decoder layer three of its own.
    shape = Shape(**{**GPT.model_dump(), "decoder_sequence_length": 128})
    w = rows(Plan(global_batch_size=_BATCH, tensor_parallel=8), shape, "t5")
    tokens = 4 * _S + 6 * 128
    expected = 2 * 7 / 8 * 2 * tokens * _H * _L * _BATCH
    found = quantities(w, _DGX, CALIBRATED)["tensor_parallel_bytes"]
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("t", [1, 2, 8])
def test_pipelines_move_activations_and_their_gradients(t: int) -> None:
    # 2 (B/d) s h elements per boundary and iteration, of which each tensor-parallel rank sends its
    # part; in each of v chunks.
    v = np.array([1.0, 2.0, 3.0])
    plan = Plan(
        global_batch_size=_BATCH,
        data_parallel=4,
        tensor_parallel=t,
        pipeline_parallel=4,
        virtual_stages=v,
    )
    expected = 2 * (_BATCH / 4) * _S * _H * 2 / t * v
    assert _of(plan)["pipeline_bytes"] == pytest.approx(expected, rel=1e-12)
    assert _of(replace(plan, pipeline_parallel=1, virtual_stages=1))["pipeline_bytes"] == 0


@pytest.mark.parametrize(
    ("t", "d", "rings"), [(1, 8, 0), (1, 64, 1), (2, 8, 2), (4, 2, 0), (8, 1, 0), (8, 8, 8)]
)
def test_gradients_between_nodes_are_one_ring_per_group(t: int, d: int, rings: int) -> None:
    found = _of(Plan(global_batch_size=_BATCH, data_parallel=d, tensor_parallel=t))
    assert found["fabric_bytes"] == pytest.approx(rings * found["gradient_sync_bytes"])


def test_tensor_parallelism_across_nodes_is_one_ring_beside_those_of_gradients() -> None:
    plan = Plan(global_batch_size=_BATCH, data_parallel=[1, 2], tensor_parallel=16)
    found = _of(plan)
    # Each of the node's eight GPUs has a gradient ring of its own.
    expected = found["tensor_parallel_bytes"] + 8 * found["gradient_sync_bytes"]
    assert found["fabric_bytes"] == pytest.approx(expected, rel=1e-12)


def test_each_end_of_a_pipeline_sends_one_way() -> None:
    # Two stages on two nodes: one's eight GPUs send activations, the other's gradients.
    plan = Plan(global_batch_size=_BATCH, tensor_parallel=8, pipeline_parallel=2)
    expected = 8 * _BATCH * _S * _H * 2 / 8
    assert _of(plan)["fabric_bytes"] == pytest.approx(expected, rel=1e-12)
    # Both in one node.
    inside = replace(plan, tensor_parallel=4)
    assert _of(inside)["fabric_bytes"] == 0


def test_stages_that_share_a_node_send_between_nodes_what_its_ends_do() -> None:
    # Twelve stages on two nodes: one GPU's activations one way, its neighbour's gradients back.
    found = _of(Plan(global_batch_size=_BATCH, pipeline_parallel=12))
    assert found["fabric_bytes"] == pytest.approx(2 * _BATCH * _S * _H * 2, rel=1e-12)
    assert found["fabric_bytes"] == pytest.approx(found["pipeline_bytes"], rel=1e-12)


def test_memory_is_that_of_the_fullest_stage() -> None:
    # Of logits there are more in a large micro batch than of layers.
    for b, recompute, fuller in ((1, "none", 0), (128, "full", 3)):
        plan = Plan(global_batch_size=4 * b, micro_batch_size=b, pipeline_parallel=4)
        w = rows(replace(plan, recompute=recompute), GPT)
        stages = [float(memory(w, stage).total[0]) for stage in range(4)]
        assert int(np.argmax(stages)) == fuller
        found = quantities(w, _DGX, CALIBRATED)
        assert sum(found[part][0] for part in MEMORY) == pytest.approx(max(stages), rel=1e-12)


def test_rates_are_bytes_over_time() -> None:
    found = _of(Plan(global_batch_size=_BATCH, data_parallel=16))
    gigabits = 8e-9 * found["fabric_bytes"]
    assert found["fabric_gbps"] == pytest.approx(gigabits / found["iteration_time_s"])
    assert found["fabric_burst_gbps"] == pytest.approx(gigabits / found["gradient_sync"])
    tokens = _BATCH * _S / found["iteration_time_s"] / 16
    assert found["tokens_per_s_per_gpu"] == pytest.approx(tokens)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("distributed", [False, True])
def test_bursts_are_no_faster_than_the_link(distributed: bool, overlap: bool) -> None:
    plan = Plan(
        global_batch_size=_BATCH,
        data_parallel=[16, 64],
        distributed_optimizer=distributed,
        overlap_gradient_sync=overlap,
    )
    found = quantities(rows(plan), machine_of("dgx-a100", IDEAL), IDEAL)
    assert (found["fabric_burst_gbps"] > 0).all()
    assert (found["fabric_burst_gbps"] <= 1600 * (1 + 1e-9)).all()


@given(workloads(most=4), machines)
def test_no_machine_beats_its_peak(w: Workload, machine: Machine) -> None:
    found = quantities(w, machine, CALIBRATED)
    assert (found["mfu"] > 0).all() and (found["mfu"] <= found["hfu"]).all()
    assert (found["hfu"] < 1).all()


@given(workloads(most=4), machines, st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_nan_is_where_a_plan_cannot_run(
    w: Workload, machine: Machine, t: int, p: int, v: int
) -> None:
    # The first row is what was drawn, and can run.
    def after_the_first(values: Array, value: int) -> Array:
        return np.concatenate([values[:1], np.full(len(values) - 1, float(value))])

    mixed = replace(
        w,
        tensor_parallel=after_the_first(w.tensor_parallel, t),
        pipeline_parallel=after_the_first(w.pipeline_parallel, p),
        virtual_stages=after_the_first(w.virtual_stages, v),
    )
    runs = valid(mixed)
    assert runs[0]
    for name, values in quantities(mixed, machine, CALIBRATED).items():
        assert (np.isfinite(values) == runs).all(), name
        assert (np.isnan(values) == ~runs).all(), name


@given(workloads(most=5), machines)
def test_many_rows_are_the_rows_one_by_one(w: Workload, machine: Machine) -> None:
    together = quantities(w, machine, CALIBRATED)
    for number in range(len(w.layers)):
        alone = quantities(w.rows(slice(number, number + 1)), machine, CALIBRATED)
        for name, values in together.items():
            np.testing.assert_allclose(values[number], alone[name][0], rtol=1e-12, err_msg=name)


def test_columns_of_parameters_are_the_parameters_one_by_one() -> None:
    w = rows(Plan(global_batch_size=_BATCH, data_parallel=[1, 2, 4], tensor_parallel=2))
    drawn = np.array([[0.7], [0.8]]), np.array([[1e-3], [2e-3]])
    names = ("gemm_efficiency", "host_layer_s")
    together = CALIBRATED.model_copy(update=dict(zip(names, drawn, strict=True)))
    found = iteration_times_s(w, _DGX, together)
    assert found.shape == (2, 3)
    for number in range(2):
        values = {name: float(column[number, 0]) for name, column in zip(names, drawn, strict=True)}
        alone = iteration_times_s(w, _DGX, CALIBRATED.model_copy(update=values))
        np.testing.assert_allclose(found[number], alone, rtol=1e-12)


def test_blocks_join_in_order() -> None:
    count = 20_001
    w = rows(Plan(global_batch_size=np.arange(1.0, count + 1)))
    seen: list[int] = []

    def evaluate(block: Workload) -> dict[str, Array]:
        seen.append(len(block.layers))
        return {"batch": block.global_batch_size}

    joined = in_blocks(w, evaluate)["batch"]
    assert len(seen) > 1 and sum(seen) == count
    np.testing.assert_array_equal(joined, w.global_batch_size)


def test_phases_and_parts_of_memory_are_told_apart() -> None:
    w = rows(Plan(global_batch_size=_BATCH, data_parallel=2, tensor_parallel=2))
    found = quantities(w, _DGX, CALIBRATED)
    # Each phase in seconds under its own name, whatever parts of memory are called.
    together = total(*(found[name] for name in PHASES))
    assert together == pytest.approx(found["iteration_time_s"], rel=1e-12)
    assert len({*PHASES, *MEMORY}) == len(PHASES) + len(MEMORY)


def test_times_alone_are_the_same_times() -> None:
    w = rows(Plan(global_batch_size=_BATCH, data_parallel=[1, 2, 4], recompute="full"))
    alone = iteration_times_s(w, _DGX, CALIBRATED)
    assert alone.tolist() == quantities(w, _DGX, CALIBRATED)["iteration_time_s"].tolist()
