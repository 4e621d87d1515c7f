"""Public training logs and what a correct reader says of them."""

import csv
from pathlib import Path

from repro.paths import ROOT

INDEX = Path(__file__).parent / "training" / "INDEX.csv"
with INDEX.open(encoding="utf-8", newline="") as _file:
    # Rows by file; numbers as text, empty where the log does not have them.
    EXPECTED = {row["file"]: row for row in csv.DictReader(_file)}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# Lines of other vintages, by tool: the text, seconds per iteration or None, and tokens per second
# per GPU or None. Formats are those of the tools' sources.
VINTAGES: dict[str, tuple[str, str, float | None, float | None]] = {
    "Megatron-LM 2020": (
        "Megatron",
        " iteration      100/ 1000 | elapsed time per iteration (ms): 512.5 | learning rate: 1E-04"
        " | lm loss: 6.5E+00 | loss scale: 1.0 |\n",
        0.5125,
        None,
    ),
    "Megatron-LM 2024": (
        "Megatron",
        " [2024-05-01 10:00:00] iteration       20/     100 | consumed samples:         2560 |"
        " elapsed time per iteration (ms): 8000.0 | throughput per GPU (TFLOP/s/GPU): 401.5 |"
        " learning rate: 1.0E-05 | global batch size:   128 | lm loss: 1.1E+01 |\n",
        8.0,
        None,
    ),
    "Megatron-DeepSpeed": (
        "Megatron",
        " [default7]: iteration    12695/  115311 | consumed samples:      9841584 |"
        " consumed tokens:  20155564032 | elapsed time per iteration (s): 105.22 |"
        " global batch size:  2048 | lm loss: 2.46E+00 | samples per second: 19.463 |"
        " TFLOPs: 149.02 |\n",
        105.22,
        None,
    ),
    "Megatron-DeepSpeed with tokens": (
        "Megatron",
        " iteration       10/     100 | consumed samples: 320 | elapsed time per iteration (ms):"
        " 3641.2 | global batch size: 32 | samples per second: 8.788 | tokens per gpu per second"
        " (tgs): 1124.9 | TFLOPs: 50.2 |\n",
        3.6412,
        1124.9,
    ),
    "Megatron-DeepSpeed with equal signs": (
        "Megatron",
        "[2024-09-16 22:59:19.287338][INFO][training_log:661] -  iteration=       1/  635782 |"
        " consumed_samples=         768 | elapsed_time_per_iteration_ms=29570.0 |"
        " global_batch_size=768 | lm loss=11.167250 | samples_per_second=25.972 |"
        " tokens_per_gpu_per_second_tgs=4432.597 | [LM]TFLOPs=20.30 | [DS]TFLOPs=26.18 |\n",
        29.57,
        4432.597,
    ),
    "Primus": (
        "Megatron",
        "[20251202 06:56:28][rank-7/8][INFO ] [--------trainer.py:2560] : iteration 4408/ 5000 |"
        " consumed samples: 564224 | elapsed time per iteration (ms): 13100.0/13240.9 |"
        " throughput per GPU (TFLOP/s/GPU): 579.4/573.6 | tokens per GPU (tokens/s/GPU):"
        " 10005.5/9903.7 | global batch size: 128 | lm loss: 4.142716E-03 |\n",
        13.1,
        10005.5,
    ),
    "torchtitan of 2024": (
        "torchtitan",
        "[rank0]:2024-06-01 12:00:00,000 - root - INFO - step: 10  loss:  5.1  memory: 40.00GiB"
        "(42.10%)  wps: 5,762  mfu: 40.10%\n",
        None,
        5762.0,
    ),
    "NeMo 1 progress bar": (
        "NeMo",
        "Epoch 0:  10%|# | 20/200 [16:40<2:30:00, v_num=1, reduced_train_loss=9.800,"
        " global_step=19.00, consumed_samples=5120.0, train_step_timing in s=50.20]\n",
        50.2,
        None,
    ),
    "NeMo 1 without a total": (
        "NeMo",
        "Epoch 1: : 1it [00:04,  4.36s/it, v_num=d3c7, reduced_train_loss=0.674, global_step=1.000,"
        " consumed_samples=128.0, train_step_timing in s=3.370]\n",
        3.37,
        None,
    ),
    "Composer in one line": (
        "Composer",
        "[batch=40/40]: Train throughput/device/tokens_per_sec: 4884.9990"
        "   memory/peak_allocated_mem: 14.7660\n",
        None,
        4884.999,
    ),
    "DeepSpeed 0.3": (
        "DeepSpeed training",
        "[2021-01-01 00:00:00,000] [INFO] [timer.py:157:stop] 0/20, SamplesPerSec=40.5,"
        " MemAllocated=0.77GB, MaxMemAllocated=2.1GB\n",
        None,
        None,
    ),
    "DeepSpeed pipeline engine": (
        "DeepSpeed training",
        "steps: 20 loss: 0.61 iter time (s): 3.264 samples/sec: 78.432\n",
        3.264,
        None,
    ),
    "Hugging Face summary": (
        "Hugging Face Trainer",
        "{'train_runtime': 120.5, 'train_samples_per_second': 66.4, 'train_steps_per_second': 0.5,"
        " 'train_tokens_per_second': 3400.2, 'train_loss': 1.2, 'epoch': 1.0}\n",
        2.0,
        3400.2,
    ),
    "Hugging Face metrics": (
        "Hugging Face Trainer",
        "***** train metrics *****\n  train_runtime            = 0:02:00.50\n"
        "  train_samples_per_second =     66.400\n  train_steps_per_second   =      0.500\n",
        2.0,
        None,
    ),
    "Hugging Face in a container": (
        "Hugging Face Trainer",
        "training-nlp-1  | {'learning_rate': '6.7e-06', 'epoch': '0.5'}\n"
        "training-nlp-1  | 80/80 [01:41<00:00,  1.27s/it]\n",
        1.27,
        None,
    ),
    "MLPerf": (
        "MLPerf",
        '0: :::MLLOG {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key":'
        ' "tracked_stats", "value": {"throughput": 30.69, "train_step_time": 4.17}, "metadata":'
        ' {"step": 172032}}\n',
        4.17,
        None,
    ),
}
