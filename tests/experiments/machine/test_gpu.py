"""What is asked of a GPU by itself, and what becomes of what it cannot do."""

import json
import time

import numpy as np
import pytest
import torch

from repro.catalog.models.open_models import DecoderShape, OpenModel, open_model
from repro.catalog.studies.gpu import GpuDecoder, GpuSustained, read_gpu_study
from repro.errors import NotRunHere
from repro.experiments.machine import gpu, gpu_decoding
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


@pytest.fixture
def small(cuda_means_cpu: None, monkeypatch: pytest.MonkeyPatch) -> GpuDecoder:
    """Decoders on the CPU."""
    entry = open_model("llama3.1-8b").model_copy(update={"shape": _SHAPE})
    known: dict[str, OpenModel] = {"small": entry, "other": entry}
    monkeypatch.setattr(gpu_decoding, "open_model", known.__getitem__)
    monkeypatch.setattr(
        gpu_decoding,
        "Decoder",
        lambda shape, weights, device: Decoder(shape, weights, device="cpu"),
    )
    return GpuDecoder(
        models=("small", "other"),
        weights=("bf16", "fp8"),
        batches=(1, 3),
        contexts=(4, 8, 16),
        prompt_batches=(2,),
        prompt_tokens=(5, 9),
        repeats=2,
    )


def test_kernels_of_a_pass_are_told_apart_by_their_names(
    small: GpuDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob": 1.0,
        "void at::native::unrolled_elementwise_kernel<at::native::float8_copy_kernel_cuda(": 2.0,
        "nvjet_tst_128x64_64x8_2x1_v_bz_TNT": 4.0,
        "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128": 8.0,
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>": 16.0,
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add": 32.0,
    }
    monkeypatch.setattr(gpu_decoding, "kernels", lambda work: [*names.items()])
    found = gpu_decoding.measure_gpu_decoding_parts(small)
    for name in ("output_token", "prompt"):
        seconds, counts = found[f"{name}_s"], found[f"{name}_kernels"]
        for part, expected, many in (
            ("attention", 17.0, 2),
            ("casts", 2.0, 1),
            ("products", 12.0, 2),
            ("element-wise", 32.0, 1),
        ):
            assert (seconds.sel(part=part) == expected).all()
            assert (counts.sel(part=part) == many).all()
    assert found["output_token_s"].sel(model="small", weights="bf16").shape == (2, 3, 4)


def test_passes_have_their_sizes_and_what_does_not_fit_a_reason(
    small: GpuDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(work: Work, repeats: int) -> list[float]:
        raise RuntimeError("CUDA out of memory. Tried to allocate all of it")

    monkeypatch.setattr(gpu_decoding, "_LAUNCHES", {"graph": _seconds, "host": full})
    found = gpu_decoding.measure_gpu_decoding(small)
    assert dict(found["output_token_s"].sizes) == {
        **{"model": 2, "weights": 2, "launch": 2, "batch": 2, "context": 3, "repeat": 2}
    }
    assert found["prompt_s"].sel(launch="graph").shape == (2, 2, 1, 2, 2)
    for name in ("output_token_s", "prompt_s"):
        assert (found[name].sel(launch="graph") > 0).all()
        assert np.isnan(found[name].sel(launch="host")).all()
    reasons = json.loads(found.attrs["not_run"])
    assert len(reasons) == 4 * (6 + 2)
    assert "CUDA out of memory" in reasons["other fp8 host output_token_s [3, 16]"]


def test_products_without_a_pause_have_a_time_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def running(variant: str, sizes: tuple[int, ...], seconds: float, rest_s: float) -> Sustained:
        replays = 2 if variant == "bf16" else 3
        one = [float(sizes[0])] * replays
        return Sustained([0.5 * at for at in range(replays)], one, one, one)

    monkeypatch.setattr(gpu, "sustained", running)
    asked = GpuSustained(
        products=((3, 4, 5), (6, 7, 8)), variants=("bf16", "fp8"), seconds=1, rest_s=1
    )
    found = gpu.measure_gpu_sustained(asked)
    assert found["product_s"].dims == ("variant", "product", "replay")
    assert found["product_s"].count("replay").values.tolist() == [[2, 2], [3, 3]]
    for name, values in (("m", [3, 6]), ("n", [4, 7]), ("k", [5, 8])):
        assert found[name].values.tolist() == values
    per_call = found["product_s"].mean("replay")
    np.testing.assert_array_equal(per_call.sel(variant="fp8"), found["m"])
