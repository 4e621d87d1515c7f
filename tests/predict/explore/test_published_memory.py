"""Jobs that ran are said to fit, and those that ran out of memory are not."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from repro.catalog.jobs import job_of, resolve
from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.paths import PUBLISHED
from repro.predict.explore.jobs.estimate import DOES_NOT_FIT, JobEstimate, estimate
from repro.predict.fused.memory import FRAGMENTATION, fullest_bytes
from repro.predict.tables.training import read_runs

_GIB = 2**30
_QWEN3_32B = (
    "--num-layers 64 --hidden-size 5120 --ffn-hidden-size 25600 --num-attention-heads 64 "
    "--num-query-groups 8 --group-query-attention --kv-channels 128 --swiglu --disable-bias-linear "
    "--padded-vocab-size 151936 --position-embedding-type rope "
    "--untie-embeddings-and-output-weights"
)
_QWEN3_235B = (
    "--num-layers 94 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 64 "
    "--num-query-groups 4 --group-query-attention --kv-channels 128 --swiglu --disable-bias-linear "
    "--padded-vocab-size 151936 --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --num-experts 128 --moe-router-topk 8 "
    "--moe-ffn-hidden-size 1536"
)
_FSDP = {"gpu": "h100-sxm-80gb", "zero": 3, "stack": "pytorch-fsdp", "recompute": "full"}


def _estimate(memory_gb: float | None = None, **job: Any) -> JobEstimate:
    """Estimate a job, on a GPU with another size of memory if one is given."""
    found = resolve(job_of(job))
    if memory_gb is not None:
        device = found.device.model_copy(update={"memory_gb": memory_gb})
        found = replace(found, device=device)
    return estimate([found])[0]


def test_published_runs_fit() -> None:
    """Those that do not: four of MaxText's, one of GPT-OSS, and one that moves activations away."""
    table = pd.read_csv(PUBLISHED / "training_modern.csv")
    there = table.gpu.map(lambda label: gpu(find_gpu_name(label)).memory_bytes)
    least = fullest_bytes(read_runs(table)) / (1 + FRAGMENTATION / 2)
    over = table[least > there]
    assert len(over) <= 0.03 * len(table)
    assert over["set"].isin(["dgxc-25.02-maxtext", "mbridge-25.09", "mbridge-25.11"]).all()


def test_submissions_to_mlperf_fit() -> None:
    table = pd.read_csv(PUBLISHED / "training_mlperf.csv")
    names = {"llama2-70b-lora": "llama2-70b"}
    same = ("gpus", "tp", "pp", "cp", "vpp", "micro_batch", "global_batch", "seq")
    jobs = [
        resolve(
            job_of(
                {
                    **{name: int(row[name]) for name in same},
                    **{name: row[name] for name in ("recompute",) if pd.notna(row[name])},
                    **{
                        name: int(row[name])
                        for name in ("lora_rank", "gradient_bytes")
                        if pd.notna(row[name])
                    },
                    "model": names.get(row["model"], row["model"]),
                    "gpu": row["gpu"],
                    "precision": row["dtype"],
                }
            )
        )
        for _, row in table.iterrows()
    ]
    verdicts = [one.memory_verdict for one in estimate(jobs)]
    assert len(verdicts) == 55
    assert verdicts.count(DOES_NOT_FIT) <= 0.05 * len(verdicts)


@pytest.mark.parametrize(
    "job",
    [
        # NVIDIA/Megatron-LM issue 606: 18 bytes of each of 6.74e9 parameters; shared optimizers
        # would not be enough.
        *(
            {"model": "llama2-7b", "gpu": "a100-sxm-40gb", "gpus": 8, "seq": 64, "zero": zero}
            for zero in (0, 1)
        ),
        # Lightning-AI/litgpt issue 1828, without recomputation.
        {**_FSDP, "model": "llama3.1-70b", "gpus": 32, "recompute": "none"},
        # NVIDIA-NeMo/Automodel pull request 2673.
        {
            **{"model": "llama3.1-70b", "gpu": "h100-sxm-80gb", "gpus": 32, "pp": 8},
            **{"seq": 1024, "micro_batch": 4},
        },
        # swiss-ai/Megatron-LM pull request 33: 85 GB are more than GPUs of 80 GB have.
        {"model": "llama3.1-8b", "gpu": "h100-sxm-80gb", "gpus": 256, "seq": 8192},
    ],
    ids=str,
)
def test_what_ran_out_of_memory_does_not_fit(job: dict[str, Any]) -> None:
    assert _estimate(**job).memory_verdict == DOES_NOT_FIT


@pytest.mark.parametrize(
    ("memory_gb", "job"),
    [
        # The same jobs, split further, recomputed, or on GPUs of 96 GB.
        (40, {"model": "llama2-7b", "gpu": "a100-sxm-40gb", "gpus": 8, "seq": 64, "tp": 2}),
        (80, {**_FSDP, "model": "llama3.1-70b", "gpus": 32, "seq": 4096}),
        (96, {"model": "llama3.1-8b", "gpu": "h100-sxm-80gb", "gpus": 256, "seq": 8192}),
        # NVIDIA/Megatron-LM issue 1000 and alibaba/Pai-Megatron-Patch issue 658.
        (
            80,
            {
                **{"model": "llama3.1-70b", "gpu": "a100-sxm-80gb", "gpus": 16, "tp": 8, "pp": 2},
                **{"seq": 4096, "global_batch": 1, "recompute": "full"},
            },
        ),
        *(
            (
                80,
                {
                    **{"model": _QWEN3_235B, "gpu": "h100-sxm-80gb", "gpus": 256, "tp": tp},
                    **{"pp": 32, "vpp": 3, "ep": 8, "etp": 1, "micro_batch": micro_batch},
                    **{"seq": 4096, "recompute": recompute, "zero": 1},
                },
            )
            for tp, micro_batch, recompute in ((1, 4, "full"), (2, 1, "selective"))
        ),
    ],
    ids=str,
)
def test_what_ran_fits(memory_gb: float, job: dict[str, Any]) -> None:
    assert _estimate(memory_gb, **job).memory_verdict != DOES_NOT_FIT


def test_a_measured_peak_is_inside_the_interval() -> None:
    """Qwen3-32B on 8 H100 of 96 GB: 81.85 GiB (pytorch/torchtitan pull request 1690)."""
    job = {**_FSDP, "model": _QWEN3_32B, "gpus": 8, "seq": 4096, "micro_batch": 2}
    stages = _estimate(94, **job).stages
    assert stages.low.max() < 81.85 * _GIB < stages.high.max()
