"""A new kind of layer is one function: counts, memory, volumes, price and schedule know it."""

import numpy as np
import pandas as pd
import pytest

from repro.catalog.models.layers import (
    Attention,
    Elements,
    Linear,
    Message,
    Operation,
    count_parameters,
    forward_flops,
    messages,
)
from repro.predict.fused.iteration import predict_phases
from repro.predict.fused.layer import layer_passes
from repro.predict.fused.parameters import read_fused
from repro.predict.fused.run import Run
from repro.predict.memory import Kept, activation_bytes
from repro.predict.tables.training import read_runs

_H, _HEADS, _RANK, _WIDTH = 1024, 16, 128, 64


def _latent_layer(_: Run) -> list[Operation]:
    """Attention to keys and values that are kept as one narrow vector (DeepSeek-V2, 2024)."""
    return [
        Elements("norm", _H, 10, 14, "sequence", _H, _H),
        Message("tensor", _H),
        Linear("queries", _H, _HEADS * _WIDTH, "outputs"),
        Linear("compressed keys, values", _H, _RANK, None),
        Linear("keys, values", _RANK, 2 * _HEADS * _WIDTH, "outputs"),
        Attention(_HEADS, _HEADS, _WIDTH, _WIDTH),
        Linear("attention output", _HEADS * _WIDTH, _H, "inputs"),
    ]


def _run(tp: int = 1) -> Run:
    model = {"layers": 8, "hidden": _H, "heads": _HEADS, "seq": 2048, "vocab": 1024}
    one = {**model, "gpu": "h100_sxm", "gpus": 8, "global_batch": 32, "tp": tp}
    return read_runs(pd.DataFrame([one]))


def test_counts_read_the_list() -> None:
    layer, tokens = _latent_layer(_run()), 100
    weights = 2 * _H * _HEADS * _WIDTH + _H * _RANK + _RANK * 2 * _HEADS * _WIDTH
    assert count_parameters(layer, 0) == weights
    scores = 4 * tokens**2 * _HEADS * _WIDTH
    assert forward_flops(layer, {"own": tokens}) == 2 * tokens * weights + scores


def test_memory_reads_the_list() -> None:
    run = _run()
    tokens = {"own": run.tokens}
    one = np.ones(1)
    kept, _ = activation_bytes(_latent_layer(run), Kept(2, 2), run.recompute, tokens, one, one, one)
    # The norm's input and output, queries, keys, values and the context, in half precision.
    assert kept == pytest.approx(2 * run.tokens * (2 * _H + 4 * _HEADS * _WIDTH))


def test_volumes_and_price_read_the_list() -> None:
    run, parameters = _run(tp=2), read_fused().parameters
    layer = _latent_layer(run)
    assert [one.width for one in messages(layer, "tensor")] == [_H]
    passes = layer_passes(run, layer, parameters)
    # One block of the two that a dense layer has: two collectives forward and three backward.
    alone, double = passes.tensor, layer_passes(run, [*layer, layer[1]], parameters).tensor
    assert np.all(double > alone) and np.all(alone > 0)
    twice = [*layer, *layer]
    assert layer_passes(run, twice, parameters).gpu == pytest.approx(2 * passes.gpu)


def test_the_schedule_reads_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    run, parameters = _run(), read_fused().parameters
    before = predict_phases(run, parameters)
    kinds = [(run.layers, _latent_layer(run))]
    monkeypatch.setattr("repro.predict.fused.iteration.layer_kinds", lambda _: kinds)
    after = predict_phases(run, parameters)
    assert after.products < before.products
    # Fewer parameters, of which replicas exchange gradients.
    assert after.optimizer < before.optimizer
