"""What is asked of a GPU by itself, and what becomes of what it cannot do."""

import json
import time

import numpy as np
import pytest
import torch

from repro.catalog.models.open_models import DecoderShape, OpenModel, open_model
from repro.catalog.studies.gpu import GpuDecoder, GpuSustained, read_gpu_study
from repro.errors import NotRunHere
from repro.experiments.machine import gpu
from repro.predict.operators.measured import KINDS, measured_rows
from repro.train.decoding import Decoder
from repro.train.gpu_operators import Sustained, Work

_SHAPE = DecoderShape(
    **{"layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "kv_heads": 2, "head_dim": 16},
    **{"gated_mlp": True, "seq": 64, "vocab": 96},
)


def _seconds(work: Work, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NotRunHere, match="this machine has no GPU that torch sees"):
        next(gpu.measure_gpu("95,5"))


def test_sizes_are_those_that_were_published() -> None:
    asked = read_gpu_study().operators
    rows = gpu._rows(asked)
    for kind, of_kind in rows[rows.kind != "addition"].groupby("kind"):
        axes = list(KINDS[str(kind)].axes)
        published = set(map(tuple, measured_rows(str(kind), asked.published_of)[axes].to_numpy()))
        assert set(map(tuple, of_kind[axes].to_numpy())) <= published
        assert (of_kind.published_us > 0).all()
    assert set(rows[rows.kind == "addition"].moved_bytes) == set(asked.added_bytes)


def test_passes_have_their_sizes_and_what_does_not_fit_a_reason(
    cuda_means_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(work: Work, repeats: int) -> list[float]:
        raise RuntimeError("CUDA out of memory. Tried to allocate all of it")

    entry = open_model("llama3.1-8b").model_copy(update={"shape": _SHAPE})
    known: dict[str, OpenModel] = {"small": entry, "other": entry}
    monkeypatch.setattr(gpu, "open_model", known.__getitem__)
    monkeypatch.setattr(gpu, "_LAUNCHES", {"graph": _seconds, "host": full})
    monkeypatch.setattr(gpu, "_kernels", lambda work: 7)
    monkeypatch.setattr(
        gpu, "Decoder", lambda shape, weights, device: Decoder(shape, weights, device="cpu")
    )
    asked = GpuDecoder(
        models=("small", "other"),
        weights=("bf16", "fp8"),
        batches=(1, 3),
        contexts=(4, 8, 16),
        prompt_batches=(2,),
        prompt_tokens=(5, 9),
        repeats=2,
    )
    found = gpu.measure_gpu_decoding(asked)
    assert dict(found["output_token_s"].sizes) == {
        **{"model": 2, "weights": 2, "launch": 2, "batch": 2, "context": 3, "repeat": 2}
    }
    assert found["prompt_s"].sel(launch="graph").shape == (2, 2, 1, 2, 2)
    for name in ("output_token_s", "prompt_s"):
        assert (found[name].sel(launch="graph") > 0).all()
        assert np.isnan(found[name].sel(launch="host")).all()
    reasons = json.loads(found.attrs["not_run"])
    assert len(reasons) == 4 * (6 + 2)
    assert "CUDA out of memory" in reasons["other fp8 output_token_s host [3, 16]"]
    assert (found["kernels"] == 7).all()


def test_products_without_a_pause_have_a_time_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def running(variant: str, sizes: tuple[int, ...], seconds: float, rest_s: float) -> Sustained:
        replays = 2 if variant == "bf16" else 3
        one = [float(sizes[0])] * replays
        return Sustained([0.5 * at for at in range(replays)], one, one, one)

    monkeypatch.setattr(gpu, "sustained", running)
    monkeypatch.setattr(gpu, "operator_s", lambda kind, variant, sizes, repeats: [1.0] * repeats)
    asked = GpuSustained(
        products=((3, 4, 5), (6, 7, 8)), variants=("bf16", "fp8"), seconds=1, rest_s=1
    )
    found = gpu.measure_gpu_sustained(asked)
    assert found["sustained_s"].dims == ("variant", "product", "replay")
    assert found["sustained_s"].count("replay").values.tolist() == [[2, 2], [3, 3]]
    for name, values in (("m", [3, 6]), ("n", [4, 7]), ("k", [5, 8])):
        assert found[name].values.tolist() == values
    per_call = found["sustained_s"].mean("replay")
    np.testing.assert_array_equal(per_call.sel(variant="fp8"), found["m"])
