"""Questions that users asked in public trackers about training jobs, with what was observed.

A case that the model misses is marked with the figure that it should have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.catalog.jobs import job_of, resolve
from repro.catalog.systems.gpus import gpu
from repro.predict.explore.jobs.estimate import (
    DOES_NOT_FIT,
    FITS,
    TIGHT,
    JobEstimate,
    by_phase,
    estimate,
)
from repro.predict.explore.jobs.explain import explain

# GPUs that are not listed, by what differs from a listed one.
_SHEETS: Mapping[str, tuple[str, dict[str, Any]]] = {
    # NVLink of 400 GB/s in both directions.
    "a800": ("a100-sxm-80gb", {"link_gbytes_per_s": 200.0}),
    "h800": ("h100-sxm-80gb", {"link_gbytes_per_s": 200.0}),
    "h100-96gb": ("h100-sxm-80gb", {"memory_gb": 96.0}),
    "gh200": ("h100-sxm-80gb", {"memory_gb": 96.0, "memory_gbytes_per_s": 4000.0}),
    # NVIDIA's data sheet of 2021: 24 GB of GDDR6, 125 TFLOP/s, PCIe 4.
    "a10": (
        "a100-pcie-40gb",
        {"memory_gb": 24.0, "memory_gbytes_per_s": 600.0, "peak_flops": 125e12}
        | {"multiprocessors": 72, "domain_gpus": 2},
    ),
}
_LLAMA = (
    "--swiglu --disable-bias-linear --position-embedding-type rope --use-distributed-optimizer "
)
_13B = (
    f"{_LLAMA} --num-layers 40 --hidden-size 5120 --ffn-hidden-size 13824 "
    "--num-attention-heads 40 --untie-embeddings-and-output-weights --padded-vocab-size 32000"
)
_QWEN3_32B = (
    f"{_LLAMA} --num-layers 64 --hidden-size 5120 --ffn-hidden-size 25600 "
    "--num-attention-heads 64 --group-query-attention --num-query-groups 8 --kv-channels 128 "
    "--untie-embeddings-and-output-weights --padded-vocab-size 151936"
)
_QWEN2_1_5B = (
    f"{_LLAMA} --num-layers 28 --hidden-size 1536 --ffn-hidden-size 8960 --add-qkv-bias "
    "--num-attention-heads 12 --group-query-attention --num-query-groups 2 "
    "--padded-vocab-size 151936"
)

# NVIDIA/Megatron-LM issue 1000.
_70B_ON_A100 = {"model": "llama3.1-70b", "gpu": "a100-sxm-80gb", "gpus": 16, "tp": 8, "pp": 2} | {
    "seq": 4096,
    "recompute": "full",
}
# NVIDIA/Megatron-LM issue 606.
_7B_ON_A100 = {"model": "llama2-7b", "gpu": "a100-sxm-40gb", "gpus": 8, "seq": 64} | {
    "global_batch": 8,
    "zero": 0,
}
# NVIDIA-NeMo/Speech issue 8059.
_13B_ON_A100 = {"model": _13B, "gpu": "a100-sxm-80gb", "gpus": 8, "tp": 4, "seq": 4096} | {
    "global_batch": 32,
    "recompute": "selective",
}
# alibaba/Megatron-LLaMA issues 16, 22 and 27.
_13B_ON_A800 = {"model": _13B, "gpu": "a800", "gpus": 16, "gpus_per_node": 8, "nic": "4x200"} | {
    "seq": 2048
}
_HEALTHY = {**_13B_ON_A800, "tp": 2, "micro_batch": 2}
# pytorch/torchtitan PR 1690.
_32B_ON_H100 = {"model": _QWEN3_32B, "gpu": "h100-96gb", "seq": 4096, "recompute": "full"} | {
    "zero": 3,
    "stack": "pytorch-fsdp",
}
_FSDP = {**_32B_ON_H100, "gpus": 8, "micro_batch": 2, "global_batch": 16}
_TP8 = {**_32B_ON_H100, "gpus": 32, "tp": 8}
_TP8_16 = {**_TP8, "micro_batch": 16, "global_batch": 64}
_TP8_32 = {**_TP8, "micro_batch": 32, "global_batch": 128}
_TP8_64 = {**_TP8, "gpus": 64, "micro_batch": 32, "global_batch": 256}
# pytorch/torchtitan PR 481 and issue 676.
_SHARDED = {"zero": 3, "stack": "pytorch-fsdp", "seq": 8192}
_405B = {**_SHARDED, "model": "llama3.1-405b", "gpu": "h100-sxm-80gb", "gpus": 128, "tp": 8} | {
    "recompute": "full"
}
_70B_ON_H200 = {**_SHARDED, "model": "llama3.1-70b", "gpu": "h200-sxm-141gb", "gpus": 32} | {
    "recompute": "full"
}
# NVIDIA-NeMo/Megatron-Bridge issue 4439.
_30B_ON_B200 = {"model": "qwen3-30b-a3b", "gpu": "b200-sxm-180gb", "gpus": 8, "ep": 8} | {
    "micro_batch": 4,
    "global_batch": 512,
    "seq": 4096,
}
# alibaba/Pai-Megatron-Patch issue 658: 94 layers on 32 x 3 chunks.
_235B = {"model": "qwen3-235b-a22b", "gpu": "h800", "gpus": 256, "pp": 32, "vpp": 3, "ep": 8} | {
    "etp": 1,
    "seq": 4096,
}
_235B_FULL = {**_235B, "micro_batch": 4, "global_batch": 4096, "recompute": "full"}
_235B_SELECTIVE = {**_235B, "tp": 2, "global_batch": 2048, "recompute": "selective"}
# Lightning-AI/litgpt issue 1828.
_70B_ON_H100 = {**_SHARDED, "model": "llama3.1-70b", "gpu": "h100-sxm-80gb", "gpus": 32}
# swiss-ai/Megatron-LM PR 33.
_8B = {"model": "llama3.1-8b", "gpu": "gh200", "gpus": 256, "gpus_per_node": 4, "nic": "4x200"}
_8B_TP2 = {**_8B, "tp": 2, "micro_batch": 4, "global_batch": 512, "seq": 4096}
_8B_TP1 = {**_8B, "micro_batch": 2, "global_batch": 512, "seq": 4096}
_8B_LONG = {**_8B, "micro_batch": 1, "global_batch": 256, "seq": 8192}
# deepspeedai/DeepSpeed issue 5770: batch and sequence are not stated.
_TWO_A10 = {**_SHARDED, "model": _QWEN2_1_5B, "gpu": "a10", "gpus_per_node": 2, "gpus": 2} | {
    "seq": 1024,
    "nic": "1x10",
    "global_batch": 4,
}


@pytest.fixture
def sheets(tmp_path: Path) -> Path:
    for name, (like, changed) in _SHEETS.items():
        sheet = gpu(like).model_dump(mode="json") | {"label": name} | changed
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(sheet))
    return tmp_path


def _estimate(sheets: Path, job: Mapping[str, Any], **changed: Any) -> JobEstimate:
    fields = {**job, **changed}
    if fields["gpu"] in _SHEETS:
        fields["gpu"] = str(sheets / f"{fields['gpu']}.yaml")
    return estimate([resolve(job_of(fields))])[0]


def _missed(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, reason=reason)


RAN = (FITS, TIGHT)


@pytest.mark.parametrize(
    ("job", "changed", "verdicts"),
    [
        pytest.param(_7B_ON_A100, {}, (DOES_NOT_FIT,), id="7B, 121 GB of states: out of memory"),
        pytest.param(_7B_ON_A100, {"zero": 1}, (DOES_NOT_FIT,), id="7B, sharded optimizer: 50 GB"),
        pytest.param(_7B_ON_A100, {"zero": 1, "tp": 2}, RAN, id="7B, tp 2"),
        pytest.param(_70B_ON_A100, {"global_batch": 1}, RAN, id="70B on 16 A100 ran"),
        pytest.param(_13B_ON_A100, {}, RAN, id="13B on 8 A100 ran"),
        pytest.param(_HEALTHY, {"global_batch": 1024}, RAN, id="13B on 16 A800 ran"),
        pytest.param(_FSDP, {}, RAN, id="32B, FSDP on 8 H100 ran"),
        pytest.param(_TP8_32, {}, RAN, id="32B, tp 8 and 32 sequences ran"),
        pytest.param(
            _TP8,
            {"micro_batch": 64, "global_batch": 256},
            (DOES_NOT_FIT,),
            id="32B, tp 8 and 64 sequences: out of memory",
            marks=_missed("65 to 71 GiB of 95 are predicted"),
        ),
        pytest.param(_405B, {"global_batch": 16}, RAN, id="405B on 128 H100 ran"),
        pytest.param(_70B_ON_H100, {}, (DOES_NOT_FIT,), id="70B on 32 H100, nothing recomputed"),
        pytest.param(_70B_ON_H100, {"recompute": "full"}, RAN, id="70B on 32 H100, recomputed"),
        pytest.param(_235B_FULL, {}, RAN, id="235B on 256 H800 ran"),
        pytest.param(
            _235B_SELECTIVE,
            {},
            RAN,
            id="235B on 256 H800, selective, ran",
        ),
        pytest.param(_8B_TP1, {}, RAN, id="8B without tp on 96 GB ran"),
        pytest.param(_8B_TP1, {"gpu": "h100-sxm-80gb"}, (DOES_NOT_FIT,), id="8B, not on 80 GB"),
    ],
)
def test_memory_is_enough_where_it_was(
    sheets: Path, job: Mapping[str, Any], changed: Mapping[str, Any], verdicts: tuple[str, ...]
) -> None:
    assert _estimate(sheets, job, **changed).memory_verdict in verdicts


@pytest.mark.parametrize(
    ("job", "measured_gib"),
    [
        pytest.param(_FSDP, 81.85),
        pytest.param(_TP8_16, 43.45, marks=_missed("30 to 33 GiB are predicted")),
        pytest.param(_TP8_32, 70.79, marks=_missed("42 to 46 GiB are predicted")),
        pytest.param(_TP8_64, 63.27, marks=_missed("34 to 37 GiB are predicted")),
    ],
)
def test_measured_memory_is_in_the_interval(
    sheets: Path, job: Mapping[str, Any], measured_gib: float
) -> None:
    stages = _estimate(sheets, job).stages
    assert stages.low.max() <= measured_gib * 2**30 <= stages.high.max()


@dataclass(frozen=True)
class _Times:
    """Verdict on a measured iteration, and how many times the expected time it took."""

    verdict: str
    least: float = 0.0
    most: float = 10.0


_EXPECTED = _Times("as expected")


@pytest.mark.parametrize(
    ("job", "changed", "measured", "expected"),
    [
        # One micro batch at a time on two stages, and still slower.
        pytest.param(
            _70B_ON_A100, {"global_batch": 1}, "20 TFLOP/s", _Times("slower"), id="70B on A100"
        ),
        # The blog states 2357; with fp32 parameters 78 to 84 % of 2000 to 2400 were reached.
        pytest.param(
            _13B_ON_A100,
            {},
            "1900 tokens/s/GPU",
            _Times("slower", 1 / 0.95, 1 / 0.78),
            id="13B on A100",
        ),
        pytest.param(_13B_ON_A100, {}, "2357 tokens/s/GPU", _EXPECTED, id="13B, the blog"),
        # Others reached 1850 to 2100 with this set-up, so this is 45 % at most.
        pytest.param(
            _13B_ON_A800,
            {"tp": 4, "micro_batch": 4, "global_batch": 1024},
            "840 tokens/s/GPU",
            _Times("slower", 1 / 0.45),
            id="13B on A800",
        ),
        pytest.param(
            _HEALTHY,
            {"global_batch": 1024},
            "1885.8 tokens/s/GPU",
            _EXPECTED,
            id="13B on 16 A800, healthy",
            marks=_missed("2487 tokens/s per GPU are predicted, 1.32 times as many"),
        ),
        pytest.param(
            _HEALTHY,
            {"gpus": 32, "global_batch": 2048},
            "64.64 s",
            _EXPECTED,
            id="13B on 32 A800, healthy",
            marks=_missed("53.0 s are predicted, 44.1 to 63.6"),
        ),
        pytest.param(_FSDP, {}, "1874 tokens/s/GPU", _EXPECTED, id="32B, FSDP"),
        *(
            pytest.param(
                job,
                {},
                f"{throughput} tokens/s/GPU",
                _EXPECTED,
                id=f"32B, tp 8, {throughput} tokens/s/GPU",
                marks=_missed("1320 tokens/s per GPU are predicted, 1.5 times as many"),
            )
            for job, throughput in ((_TP8_16, 876), (_TP8_32, 883), (_TP8_64, 873))
        ),
        pytest.param(_405B, {"global_batch": 16}, "109 tokens/s/GPU", _EXPECTED, id="405B"),
        # 98 TFLOP/s: about four times slower than possible.
        pytest.param(
            _70B_ON_H200, {}, "200 tokens/s/GPU", _Times("slower", 3.3, 4.7), id="70B on H200"
        ),
        pytest.param(_30B_ON_B200, {}, "552 TFLOP/s", _EXPECTED, id="30B-A3B in bf16"),
        pytest.param(
            _30B_ON_B200,
            {"precision": "mxfp8"},
            "562 TFLOP/s",
            _EXPECTED,
            id="30B-A3B in mxfp8",
        ),
        pytest.param(_235B_FULL, {}, "42.537 s", _EXPECTED, id="235B on H800"),
        pytest.param(_235B_FULL, {"tp": 2}, "43.495 s", _EXPECTED, id="235B on H800, tp 2"),
        pytest.param(_235B_SELECTIVE, {}, "22.42 s", _EXPECTED, id="235B on H800, selective"),
        pytest.param(_8B_TP2, {}, "8000 tokens/s/GPU", _EXPECTED, id="8B on GH200, tp 2"),
        pytest.param(_8B_TP1, {}, "8840 tokens/s/GPU", _EXPECTED, id="8B on GH200"),
        pytest.param(_8B_LONG, {}, "8290 tokens/s/GPU", _EXPECTED, id="8B on GH200, 8192 tokens"),
    ],
)
def test_a_measured_time_is_judged(
    sheets: Path,
    job: Mapping[str, Any],
    changed: Mapping[str, Any],
    measured: str,
    expected: _Times,
) -> None:
    one = _estimate(sheets, job, **changed)
    found = explain(one, measured, formula="causal" if "FLOP" in measured else None)
    assert found.verdict == expected.verdict
    assert expected.least <= found.time_s / one.iteration_time_s <= expected.most


def test_one_micro_batch_on_two_stages_is_half_of_many(sheets: Path) -> None:
    """With 64 sequences 130 to 150 TFLOP/s per A100 are usual for this model."""
    one, many = (_estimate(sheets, _70B_ON_A100, global_batch=batch) for batch in (1, 64))
    # Both stages compute, one after the other; the optimizer's step is not shared.
    assert one.mfu < many.mfu / 2
    assert 130e12 < many.mfu * many.peak_flops < 150e12


@_missed("0.77 of the speed is predicted")
def test_tensor_parallelism_halves_the_speed_of_a_small_model(sheets: Path) -> None:
    """Measured: 1874 tokens/s per GPU with FSDP, and 876 with tp 8."""
    fsdp, tp = (_estimate(sheets, job).tokens_per_s_per_gpu for job in (_FSDP, _TP8_16))
    assert tp < 0.6 * fsdp


def test_the_flops_of_a_throughput_are_those_of_the_formula(sheets: Path) -> None:
    """6 x 405.9e9 + 12 x 126 x 16384 x 8192 FLOPs per token: 109 are 288 TFLOP/s, 29 %."""
    one = _estimate(sheets, _405B, global_batch=16)
    per_token = 6 * 405.9e9 + 12 * 126 * 16384 * 8192
    assert per_token * 109 / 1e12 == pytest.approx(288, abs=1)
    flops = f"{per_token * 109 / 1e12:.1f} TFLOP/s"
    by_throughput = explain(one, "109 tokens/s/GPU").time_s
    by_flops = explain(one, flops, formula="megatron").time_s
    # The formula counts the table of embeddings as a product.
    assert by_flops == pytest.approx(by_throughput, rel=0.01)
    assert 0.25 < one.mfu < 0.38


def test_less_tensor_parallelism_is_faster_where_it_fits(sheets: Path) -> None:
    two, one = (_estimate(sheets, job) for job in (_8B_TP2, _8B_TP1))
    assert one.tokens_per_s_per_gpu > two.tokens_per_s_per_gpu


def test_a_second_node_costs_what_sharded_weights_send(sheets: Path) -> None:
    """The parameters travel three times: 9.3 GB, over 10 Gbit/s 7.4 s; 6.2 s were observed."""
    alone, both = (_estimate(sheets, _TWO_A10, gpus=count) for count in (2, 4))
    longer_s = both.iteration_time_s - alone.iteration_time_s
    assert 5 < longer_s < 7.5
    phases = by_phase(both)
    assert max(phases, key=lambda name: phases[name]) == "data parallel"
