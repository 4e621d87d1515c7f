"""One layer's passes against its FLOPs, its collectives and its launches."""

from dataclasses import replace

import numpy as np
import pytest
from examples import GPT, IDEAL, machine_of, rows, with_free_links, with_free_memory

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import forward_flops
from repro.predict.network.machine import Machine
from repro.predict.operators.kernels import Kernels
from repro.predict.parameters import Parameters
from repro.predict.step.layers import LayerPasses, layer_passes
from repro.predict.workload import Array, Plan, Workload

_B, _S, _H = 4, 1024, 1024
_LAYER_FLOPS = 24 * _B * _S * _H**2 + 4 * _B * _S**2 * _H
_CORE_FLOPS = 4 * _B * _S**2 * _H
_SIZES = np.array([1.0, 2.0, 4.0, 8.0])
_DGX = machine_of("dgx-a100", IDEAL)
_ONLY_PRODUCTS = with_free_links(with_free_memory(_DGX))


def _passes(w: Workload, machine: Machine, parameters: Parameters = IDEAL) -> LayerPasses:
    return layer_passes(w, machine, Kernels(machine.gpu, parameters))


def _split(**fields: object) -> Workload:
    plan = {"global_batch_size": _B, "micro_batch_size": _B, "tensor_parallel": _SIZES, **fields}
    return rows(Plan(**plan))


def _flops(seconds: Array) -> Array:
    return seconds * 312e12


def test_products_are_the_layers_flops_split_among_gpus() -> None:
    passes = _passes(_split(), _ONLY_PRODUCTS)
    assert _flops(passes.forward.compute) == pytest.approx(_LAYER_FLOPS / _SIZES, rel=1e-12)
    assert _flops(passes.backward.compute) == pytest.approx(2 * _LAYER_FLOPS / _SIZES, rel=1e-12)


@pytest.mark.parametrize(
    ("recompute", "flops"), [("none", 0), ("selective", _CORE_FLOPS), ("full", _LAYER_FLOPS)]
)
def test_recomputation_is_the_core_or_the_layer(recompute: str, flops: float) -> None:
    again = _passes(_split(recompute=recompute), _ONLY_PRODUCTS).recompute
    assert _flops(again.compute) == pytest.approx(flops / _SIZES, rel=1e-12)


def test_a_decoder_layer_has_cross_attention() -> None:
    shape = Shape(**{**GPT.model_dump(), "layers": 1, "decoder_sequence_length": 256})
    without_logits = shape.model_copy(update={"vocabulary_size": 0})
    both = forward_flops("t5", without_logits)
    encoder = forward_flops("gpt", without_logits)
    w = rows(Plan(global_batch_size=_B, micro_batch_size=_B), shape, "t5")
    kernels = Kernels(_ONLY_PRODUCTS.gpu, IDEAL)
    decoder = layer_passes(w, _ONLY_PRODUCTS, kernels, decoder=True)
    assert _flops(decoder.forward.compute) == pytest.approx(_B * (both - encoder), rel=1e-12)


def test_two_all_reduces_each_way() -> None:
    # 8 b s h (t-1)/t elements of two bytes in all (Narayanan et al., SC 2021, section 3.2).
    passes = _passes(_split(), _DGX)
    one_way = 4 * _B * _S * _H * (_SIZES - 1) / _SIZES * 2 / 300e9
    assert passes.forward.collectives == pytest.approx(one_way, rel=1e-9)
    assert passes.backward.collectives == pytest.approx(one_way, rel=1e-9)
    assert passes.recompute.collectives == pytest.approx(0 * one_way)


def test_full_recomputation_repeats_the_collectives() -> None:
    passes = _passes(_split(recompute="full"), _DGX)
    assert passes.recompute.collectives == pytest.approx(passes.forward.collectives, rel=1e-9)


def test_sequence_parallelism_gathers_the_products_inputs_once_more() -> None:
    passes = _passes(_split(sequence_parallel=True), _DGX)
    plain = _passes(_split(), _DGX)
    assert passes.forward.collectives == pytest.approx(plain.forward.collectives, rel=1e-9)
    # Two all-gathers beside two all-reduces.
    assert passes.backward.collectives == pytest.approx(1.5 * plain.backward.collectives, rel=1e-9)


def test_sequence_parallelism_splits_the_element_wise_work() -> None:
    # Norms and dropouts: 22 B forward and 30 B backward per element of b s h.
    with_it, without = _passes(_split(sequence_parallel=True), _DGX), _passes(_split(), _DGX)
    saved = _B * _S * _H * (1 - 1 / _SIZES) / 2039e9
    for way, size in (("forward", 22), ("backward", 30)):
        faster = getattr(without, way).compute - getattr(with_it, way).compute
        assert faster == pytest.approx(size * saved, rel=1e-6)


def test_a_short_layer_waits_for_its_launches() -> None:
    slow = IDEAL.model_copy(update={"host_layer_s": 10.0, "host_collective_s": 1.0})
    passes = _passes(_split(recompute="full"), _DGX, slow)
    # Two collectives each way where tensor parallelism has any.
    launches = 10 + np.where(_SIZES > 1, 2, 0)
    for one in (passes.forward, passes.backward, passes.recompute):
        assert one.compute == pytest.approx(launches)
        # The GPU's transfers are over before the host is.
        assert one.collectives == pytest.approx(0 * _SIZES)


def test_the_cores_launches_are_a_part_of_the_layers() -> None:
    slow = IDEAL.model_copy(update={"host_layer_s": 10.0})
    again = _passes(_split(recompute="selective"), _DGX, slow).recompute
    assert again.compute == pytest.approx(0.3 * 10)


@pytest.mark.parametrize(("heads", "unfused"), [(16, False), (2, True)])
def test_unfused_softmax_costs_launches(heads: int, unfused: bool) -> None:
    slow = IDEAL.model_copy(update={"host_layer_s": 10.0, "host_unfused_softmax_s": 1.0})
    w = replace(rows(Plan(global_batch_size=1)), attention_heads=np.array([float(heads)]))
    assert _passes(w, _DGX, slow).forward.compute == 10 + unfused
