"""An iteration's phases: limits, pipelines simulated event by event, and scaling."""

from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest
from examples import (
    CALIBRATED,
    GPT,
    IDEAL,
    machine_of,
    machines,
    rows,
    total,
    with_free_links,
    with_free_memory,
    without_head,
    workloads,
)
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import embedding_parameters, stack_parameters
from repro.predict.network.machine import Machine
from repro.predict.parameters import Parameters
from repro.predict.step.iteration import Phases, predict_phases
from repro.predict.workload import ARRAY_FIELDS, Array, Plan, Workload

_NAMES = [field.name for field in fields(Phases)]
_COMMUNICATION = (
    *("tensor_parallel", "forward_receive", "gradient_sync"),
    *("parameter_all_gather", "embedding_sync"),
)
_DGX = machine_of("dgx-a100")
_IDEAL_DGX = machine_of("dgx-a100", IDEAL)
# Sums in different orders differ by roundings.
_ROUNDING = 1e-12


def _stacked(phases: Phases) -> Array:
    return np.array([getattr(phases, name) for name in _NAMES])


@given(workloads(most=3), machines)
def test_phases_add_up_and_none_is_negative(w: Workload, machine: Machine) -> None:
    phases = predict_phases(w, machine, CALIBRATED)
    parts = _stacked(phases)
    assert parts.shape == (len(_NAMES), len(w.layers))
    assert (parts >= 0).all()
    assert phases.iteration_time_s == pytest.approx(parts.sum(axis=0), rel=_ROUNDING)


@given(workloads(), machines)
def test_free_links_make_communication_nothing(w: Workload, machine: Machine) -> None:
    free = CALIBRATED.model_copy(update={"collective_latency_s": 0.0, "hop_s": 0.0})
    phases = predict_phases(w, with_free_links(machine), free)
    for name in _COMMUNICATION:
        assert getattr(phases, name) == 0, name


@given(workloads(most=3), machines)
def test_one_gpu_waits_for_nobody(w: Workload, machine: Machine) -> None:
    one = np.ones_like(w.layers)
    alone = replace(
        w, data_parallel=one, tensor_parallel=one, pipeline_parallel=one, virtual_stages=one
    )
    phases = predict_phases(alone, machine, CALIBRATED)
    for name in (*_COMMUNICATION, "pipeline_bubble", "straggler_wait"):
        assert (getattr(phases, name) == 0).all(), name


@given(workloads(most=3), machines)
def test_one_stage_has_no_bubble(w: Workload, machine: Machine) -> None:
    one = np.ones_like(w.layers)
    phases = predict_phases(
        replace(w, pipeline_parallel=one, virtual_stages=one), machine, CALIBRATED
    )
    for name in ("pipeline_bubble", "forward_receive", "embedding_sync"):
        assert (getattr(phases, name) == 0).all(), name


@given(workloads(families=("gpt",)), machines)
def test_the_bubble_of_a_uniform_pipeline(w: Workload, machine: Machine) -> None:
    # Narayanan et al., SC 2021, section 2.2: (p-1) (f + b) / v.
    bare = CALIBRATED.model_copy(update={"hop_s": 0.0, "collective_latency_s": 0.0})
    uniform = without_head(w)
    # Free links for free hops and a head without collectives, free memory for a free embedding.
    phases = predict_phases(uniform, with_free_memory(with_free_links(machine)), bare)
    both = phases.forward_compute + phases.backward_compute + phases.recompute
    one = both / w.micro_batches + CALIBRATED.host_micro_batch_s
    expected = (w.pipeline_parallel - 1) * one / w.virtual_stages
    assert phases.pipeline_bubble == pytest.approx(expected, rel=_ROUNDING)


def _simulate_1f1b(forward: list[float], backward: list[float], micro_batches: int) -> float:
    """The end of plain 1F1B, whose stages have these times, task by task."""
    stages = len(forward)
    tasks = [_order(stages - 1 - stage, micro_batches) for stage in range(stages)]
    ended: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * stages
    while any(tasks):
        for stage, waiting in enumerate(tasks):
            if not waiting:
                continue
            way, number = waiting[0]
            before = _before(way, number, stage, stages)
            if before is not None and before not in ended:
                continue
            start = clock[stage] if before is None else max(clock[stage], ended[before])
            clock[stage] = start + (forward if way == "forward" else backward)[stage]
            ended[way, number, stage] = clock[stage]
            waiting.pop(0)
    return max(clock)


def _order(ahead: int, micro_batches: int) -> list[tuple[str, int]]:
    """Forward passes ahead of the first backward one, then in turns, then what is left."""
    ahead = min(ahead, micro_batches)
    order = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches - ahead):
        order += [("forward", ahead + number), ("backward", number)]
    return order + [("backward", number) for number in range(micro_batches - ahead, micro_batches)]


def _before(way: str, number: int, stage: int, stages: int) -> tuple[str, int, int] | None:
    """What a task waits for beside its own stage."""
    if way == "forward":
        return ("forward", number, stage - 1) if stage else None
    last = stage == stages - 1
    return ("forward", number, stage) if last else ("backward", number, stage + 1)


_STAGES = pytest.mark.parametrize("stages", [2, 3, 4, 6])
_MICRO_BATCHES = pytest.mark.parametrize("micro_batches", [1, 2, 3, 4, 8, 13])
# Pipelines of nothing but their stages' passes.
_BARE = CALIBRATED.model_copy(
    update={"hop_s": 0.0, "host_micro_batch_s": 0.0, "straggler_fraction": 0.0}
)
_FREE_LINKS = with_free_links(_DGX)


def _passes_s(w: Workload) -> Array:
    """Forward and backward time of one micro batch in the stage whose phases the model gives."""
    phases = predict_phases(w, _FREE_LINKS, _BARE)
    back = phases.backward_compute + phases.recompute
    return np.concatenate([phases.forward_compute, back]) / w.micro_batches


def _first_stage_passes_s(plan: Plan, stages: int) -> Array:
    """One GPU with a stage's layers and no logits has the embedding, as the first stage has."""
    part = GPT.model_copy(update={"layers": GPT.layers // stages})
    return _passes_s(without_head(rows(replace(plan, pipeline_parallel=1), part)))


def _pipeline_s(w: Workload) -> float:
    phases = predict_phases(w, _FREE_LINKS, _BARE)
    passes = phases.forward_compute + phases.backward_compute + phases.recompute
    return float((passes + phases.pipeline_bubble)[0])


@_STAGES
@_MICRO_BATCHES
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_uneven_pipelines_take_what_a_simulation_takes(
    stages: int, micro_batches: int, recompute: str
) -> None:
    plan = Plan(global_batch_size=micro_batches, pipeline_parallel=stages, recompute=recompute)
    whole = rows(plan)
    first = _first_stage_passes_s(plan, stages)
    middle, last = _passes_s(without_head(whole)), _passes_s(whole)
    assert middle.sum() < first.sum() < last.sum()
    times = np.array([first, *[middle] * (stages - 2), last])
    simulated = _simulate_1f1b(times[:, 0].tolist(), times[:, 1].tolist(), micro_batches)
    # Where the last stage is the slowest, the others' passes are all hidden behind its own.
    assert _pipeline_s(whole) == pytest.approx(simulated, rel=1e-9)


@_STAGES
@_MICRO_BATCHES
def test_pipelines_with_a_slow_first_stage(stages: int, micro_batches: int) -> None:
    plan = Plan(global_batch_size=micro_batches, pipeline_parallel=stages)
    whole = without_head(rows(plan))
    first, middle = _first_stage_passes_s(plan, stages), _passes_s(whole)
    times = np.array([first, *[middle] * (stages - 1)])
    simulated = _simulate_1f1b(times[:, 0].tolist(), times[:, 1].tolist(), micro_batches)
    # 1F1B hides what the first stage has more than the others in its wait for the first gradient,
    # in all micro batches that are ahead by then; the model does not.
    hidden = min(micro_batches, stages) - 1
    tolerance = hidden * (first - middle).sum() + 1e-9 * simulated
    assert simulated * (1 - 1e-9) <= _pipeline_s(whole) <= simulated + tolerance


@given(workloads(), machines, st.floats(1, 1e3), st.sampled_from([0, -1]))
def test_more_bandwidth_is_never_slower(
    w: Workload, machine: Machine, factor: float, number: int
) -> None:
    levels = list(machine.levels)
    levels[number] = replace(levels[number], bytes_per_s=factor * levels[number].bytes_per_s)
    faster = _time(w, replace(machine, levels=tuple(levels)))
    assert faster <= _time(w, machine) * (1 + _ROUNDING)


@given(workloads(), machines, st.floats(1, 100), st.sampled_from(["peak_flops", "memory"]))
def test_a_faster_gpu_is_never_slower(
    w: Workload, machine: Machine, factor: float, what: str
) -> None:
    name = "memory_gbytes_per_s" if what == "memory" else what
    gpu = machine.gpu.model_copy(update={name: factor * getattr(machine.gpu, name)})
    assert _time(w, replace(machine, gpu=gpu)) <= _time(w, machine) * (1 + _ROUNDING)


@given(workloads(), machines, st.integers(1, 5))
def test_more_micro_batches_are_never_faster(w: Workload, machine: Machine, more: int) -> None:
    size = w.global_batch_size + more * w.micro_batch_size * w.data_parallel
    longer = _time(replace(w, global_batch_size=size), machine)
    assert longer >= _time(w, machine) * (1 - _ROUNDING)


@given(workloads(), machines)
def test_all_rates_doubled_and_all_times_halved(w: Workload, machine: Machine) -> None:
    halved = CALIBRATED.model_copy(
        update={
            name: value / 2 for name, value in CALIBRATED.model_dump().items() if name[-2:] == "_s"
        }
    )
    gpu = machine.gpu
    rates = {name: 2 * getattr(gpu, name) for name in ("peak_flops", "memory_gbytes_per_s")}
    levels = [
        replace(level, bytes_per_s=2 * level.bytes_per_s, latency_s=level.latency_s / 2)
        for level in machine.levels
    ]
    doubled = replace(machine, gpu=gpu.model_copy(update=rates), levels=tuple(levels))
    # Powers of two change no mantissa: exactly half.
    slow = _stacked(predict_phases(w, machine, CALIBRATED))
    fast = _stacked(predict_phases(w, doubled, halved))
    np.testing.assert_array_equal(2 * fast, slow)


@given(workloads(most=6), machines)
def test_many_rows_are_the_rows_one_by_one(w: Workload, machine: Machine) -> None:
    together = _stacked(predict_phases(w, machine, CALIBRATED))
    for number in range(len(w.layers)):
        alone = predict_phases(w.rows(slice(number, number + 1)), machine, CALIBRATED)
        # Logarithms and powers of vectors may round differently.
        np.testing.assert_allclose(together[:, number], _stacked(alone)[:, 0], rtol=_ROUNDING)


@given(workloads(most=6), machines, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(w: Workload, machine: Machine, random: Random) -> None:
    order = list(range(len(w.layers)))
    random.shuffle(order)
    mixed = replace(w, **{name: getattr(w, name)[order] for name in ARRAY_FIELDS})
    expected = _stacked(predict_phases(w, machine, CALIBRATED))[:, order]
    found = _stacked(predict_phases(mixed, machine, CALIBRATED))
    np.testing.assert_allclose(found, expected, rtol=_ROUNDING)


def test_gradients_take_their_ring() -> None:
    d = np.array([2.0, 4.0, 8.0])
    plan = Plan(global_batch_size=8, data_parallel=d)
    phases = predict_phases(rows(plan), _IDEAL_DGX, IDEAL)
    w = rows(Plan(global_batch_size=8))
    gradients = 2 * (stack_parameters("gpt", w) + embedding_parameters(w))
    assert phases.gradient_sync == pytest.approx(2 * (d - 1) / d * gradients / 300e9, rel=1e-9)
    assert (phases.parameter_all_gather == 0).all()


def test_a_distributed_optimizer_halves_the_sync_and_gathers_instead() -> None:
    plan = Plan(global_batch_size=8, data_parallel=8)
    plain = predict_phases(rows(plan), _IDEAL_DGX, IDEAL)
    sharded = predict_phases(rows(replace(plan, distributed_optimizer=True)), _IDEAL_DGX, IDEAL)
    assert sharded.gradient_sync == pytest.approx(plain.gradient_sync / 2, rel=1e-9)
    assert sharded.parameter_all_gather == pytest.approx(plain.gradient_sync / 2, rel=1e-9)
    assert sharded.optimizer == pytest.approx(plain.optimizer / 8, rel=1e-9)


@given(workloads(most=3, families=("gpt", "bert")), machines)
def test_overlap_is_never_slower(w: Workload, machine: Machine) -> None:
    _assert_overlap_is_no_slower(w, machine)


def test_overlap_is_never_slower_with_more_stages_than_a_stack_has_layers() -> None:
    shape = Shape(**{**GPT.model_dump(), "layers": 4, "decoder_sequence_length": 128})
    plan = Plan(global_batch_size=16, data_parallel=2, pipeline_parallel=8)
    _assert_overlap_is_no_slower(rows(plan, shape, "t5"), _DGX)


def _assert_overlap_is_no_slower(w: Workload, machine: Machine) -> None:
    def sync(overlap: float) -> Array:
        switched = replace(w, overlap_gradient_sync=np.full_like(w.layers, overlap))
        return predict_phases(switched, machine, CALIBRATED).gradient_sync

    assert (sync(1.0) <= sync(0.0) * (1 + _ROUNDING)).all()


def test_overlap_leaves_the_gradients_of_the_last_layer() -> None:
    # Backward passes of 24 layers are longer than a ring in a node.
    plan = Plan(global_batch_size=64, micro_batch_size=8, data_parallel=8)
    stages = np.array([1.0, 2.0, 4.0])
    split = replace(plan, pipeline_parallel=stages)
    plain = predict_phases(rows(split), _DGX, CALIBRATED)
    hidden = predict_phases(rows(replace(split, overlap_gradient_sync=True)), _DGX, CALIBRATED)
    assert hidden.gradient_sync == pytest.approx(plain.gradient_sync * stages / 24, rel=1e-9)
    # A stage of one layer has nothing to hide behind.
    alone = replace(plan, pipeline_parallel=24)
    plain = predict_phases(rows(alone), _DGX, CALIBRATED)
    hidden = predict_phases(rows(replace(alone, overlap_gradient_sync=True)), _DGX, CALIBRATED)
    assert hidden.gradient_sync == plain.gradient_sync


@pytest.mark.parametrize("gpus", [2, 16, 64])
def test_stragglers_cost_a_share_of_all_that_is_computed(gpus: int) -> None:
    w = rows(Plan(global_batch_size=64, data_parallel=gpus))
    phases = predict_phases(w, _DGX, CALIBRATED)
    computed = total(
        phases.forward_compute,
        phases.backward_compute,
        CALIBRATED.host_micro_batch_s * w.micro_batches,
    )
    expected = CALIBRATED.straggler_fraction * np.log(gpus) * computed
    assert phases.straggler_wait == pytest.approx(expected, rel=1e-9)


def test_messages_between_stages() -> None:
    # Each micro batch's activations forward and its gradients back, and again in each chunk, to the
    # GPU eight further: the node's eight GPUs share its NICs.
    v = np.array([1.0, 2.0, 3.0])
    plan = Plan(global_batch_size=8, data_parallel=4, tensor_parallel=2, pipeline_parallel=2)
    split = replace(plan, virtual_stages=v, sequence_parallel=True)
    phases = predict_phases(rows(split), _IDEAL_DGX, IDEAL)
    message = 1024 * 1024 * 2 / 2
    assert phases.forward_receive == pytest.approx(2 * 2 * v * message / 25e9, rel=1e-9)


def test_both_ends_of_a_pipeline_sum_the_gradients_of_the_words() -> None:
    plan = Plan(global_batch_size=8, tensor_parallel=8, pipeline_parallel=[1, 2, 4])
    phases = predict_phases(rows(plan), _IDEAL_DGX, IDEAL)
    # Two ranks: S each way (formulas of rings), over an eighth of a node's NICs.
    words = 2 * 51200 * 1024 / 8
    assert phases.embedding_sync == pytest.approx(np.array([0, 1, 1]) * words / 25e9, rel=1e-9)


def _time(w: Workload, machine: Machine, parameters: Parameters = CALIBRATED) -> float:
    return float(predict_phases(w, machine, parameters).iteration_time_s[0])
