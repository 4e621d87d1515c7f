"""Public training logs: numbers that a correct reader finds, whatever was done to the text."""

import math
import random

import pytest
from training_logs import EXPECTED, VINTAGES, text_of

from repro.errors import ReproError
from repro.logs.training.reading import TrainingLog, read_training_log
from repro.logs.training.runs import KINDS

_PREFIXES = (
    *("0: ", "12:  ", "[rank3]: ", "[rank3]:", "worker-0: ", "[default7]:"),
    *("2025-01-02T03:04:05.678901234Z ", "2025-01-02T03:04:05+00:00 ", "[1,3]<stdout>:"),
    *(
        "trainer-1  | ",
        "(RayTrainWorker pid=1) ",
        "(RayTrainWorker pid=17, ip=10.0.0.1) ",
        "\x1b[36m[rank0]: ",
    ),
    "0: [default7]:",
)
# A printed value has at most this relative error by rounding.
_PRINTED = 0.005
# Ranks, and two formats of one iteration, differ by less.
_SAME = 1e-3


def _one(log: TrainingLog) -> dict[str, object]:
    """Everything that is said of a log with one run."""
    (run,) = log.runs
    names = ("time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "mfu")
    return {
        "tool": run.tool,
        **{name: run.middle(name) for name in names},
        "phases": dict(run.phases_s),
        "stated": dict(run.stated),
        "arguments": run.arguments,
        "kinds": run.steps.kind.tolist(),
        "warnings": run.warnings,
        "recognized": log.recognized,
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_public_logs_say_what_their_readers_found(name: str) -> None:
    expected = EXPECTED[name]
    log = read_training_log(text_of(name))
    (run,) = log.runs
    assert run.tool == expected["tool"]
    assert log.recognized == int(expected["recognized"])
    assert len(run.steady) == int(expected["steady"])
    for field in ("time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"):
        if expected[field]:
            assert run.middle(field) == pytest.approx(float(expected[field]), rel=_PRINTED)
    if expected["memory_gb"]:
        assert run.middle("memory_bytes") == pytest.approx(1e9 * float(expected["memory_gb"]), 0.01)
    if expected["gpus"]:
        assert run.stated["gpus"] == int(expected["gpus"])
    if expected["global_batch"]:
        batch = run.middle("global_batch") or run.stated["global_batch"]
        assert batch == int(expected["global_batch"])
    assert expected["warning"] in "; ".join(run.warnings)
    assert set(run.steps.kind) <= set(KINDS)


def test_a_profile_without_a_time_says_what_it_states() -> None:
    with pytest.raises(ReproError, match=r"0 of 14 lines .* gpus 128, dp 16, tp 8, micro_batch 8"):
        read_training_log(text_of("tests/logs/training/deepspeed_profiler.txt"))


def test_timers_are_those_of_steady_iterations() -> None:
    (run,) = read_training_log(text_of("data/published/logs/megatron_gpt2_32_v100.txt")).runs
    # The first interval's 1000.1 ms are warm-up; the others' are 721 to 737 ms.
    assert 0.70 < run.phases_s["backward-embedding-all-reduce"] < 0.74
    assert "includes waiting for the last pipeline stage" in run.warnings[-1]
    assert run.steps.kind.tolist()[10] == "evaluation"
    (bert,) = read_training_log(text_of("tests/logs/training/megatron_2022_bert.txt")).runs
    assert bert.phases_s["backward-params-all-reduce"] == pytest.approx(21.43e-3)


@pytest.mark.parametrize("vintage", VINTAGES)
def test_other_vintages(vintage: str) -> None:
    tool, text, time_s, tokens = VINTAGES[vintage]
    (run,) = read_training_log(text).runs
    assert run.tool == tool
    assert run.middle("time_s") == (time_s if time_s is None else pytest.approx(time_s))
    own = run.middle("tokens_per_s_per_gpu")
    assert own == (tokens if tokens is None else pytest.approx(tokens))


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("prefix", _PREFIXES)
def test_prefixes_of_launchers_change_nothing(name: str, prefix: str) -> None:
    text = text_of(name)
    prefixed = "".join(f"{prefix}{line}\n" for line in text.splitlines())
    assert _one(read_training_log(prefixed)) == _one(read_training_log(text))


@pytest.mark.parametrize("name", EXPECTED)
def test_line_ends_marks_and_colours_change_nothing(name: str) -> None:
    text = text_of(name)
    expected = _one(read_training_log(text))
    lines = text.splitlines()
    for changed in (
        "\ufeff" + text,
        "\r\n".join(lines) + "\r\n",
        "".join(f"\x1b[31m{line}\x1b[0m\n" for line in lines),
    ):
        assert _one(read_training_log(changed)) == expected


def test_tags_inside_lines_are_removed() -> None:
    _, text, time_s, _ = VINTAGES["Megatron-LM 2024"]
    inside = text.replace("| consumed", "| [rank3]: consumed").replace("(ms)", "[default7]:(ms)")
    (run,) = read_training_log(inside).runs
    assert run.middle("time_s") == time_s


def test_two_ranks_in_one_line_are_two_iterations() -> None:
    text = VINTAGES["Megatron-LM 2020"][1].strip("\n")
    other = text.replace("100/", "101/").replace("512.5", "612.5")
    (run,) = read_training_log(f"{text}{other}\n").runs
    assert run.steps.time_s.tolist() == pytest.approx([0.5125, 0.6125])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_cut_log_says_nothing_that_the_whole_does_not(name: str) -> None:
    lines = text_of(name).splitlines(keepends=True)
    (whole,) = read_training_log("".join(lines)).runs
    for count in range(len(lines)):
        try:
            cut = read_training_log("".join(lines[:count]))
        except ReproError as error:
            assert "an iteration" in str(error)
            continue
        (run,) = cut.runs
        for field in ("time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "global_batch"):
            found, every = run.middle(field), whole.steps[field].dropna()
            if found is not None and len(every):
                assert (1 - _SAME) * every.min() <= found <= (1 + _SAME) * every.max()
        for fact in ("gpus", "tp", "pp", "dp"):
            assert run.stated.get(fact, whole.stated.get(fact)) == whole.stated.get(fact)


def test_a_number_that_is_cut_is_not_one() -> None:
    text = text_of("tests/logs/training/megatron_deepspeed_52b.txt")
    at = text.index("elapsed time per iteration (ms): 138928.9")
    for end in range(at, at + 60):
        (run,) = read_training_log(text[:end]).runs
        # 13 or 1389 ms would be what the cut digits say.
        assert run.steps.time_s.min() > 130


def test_a_cut_value_of_a_block_is_none() -> None:
    text = text_of("tests/logs/training/composer_mpt_30b.txt")
    at = text.index("device/tokens_per_sec: 1255.1776") + len("device/tokens_per_sec: 12")
    (run,) = read_training_log(text[:at]).runs
    assert run.middle("tokens_per_s_per_gpu") is None
    assert run.middle("tokens_per_s") == pytest.approx(20082.8, rel=1e-4)


def test_a_line_without_an_end_is_read() -> None:
    (run,) = read_training_log("Epoch 0: | 20/200 [1:00, train_step_timing in s=50.2").runs
    assert run.middle("time_s") == 50.2


def test_shuffled_lines_are_one_run_with_the_same_time() -> None:
    lines = text_of("tests/logs/training/megatron_deepspeed_52b.txt").splitlines()
    random.Random(1).shuffle(lines)
    (run,) = read_training_log("\n".join(lines) + "\n").runs
    assert run.middle("time_s") == pytest.approx(137.1, rel=_PRINTED)
    assert "out of order" in run.warnings[0]
    assert run.stated["gpus"] == 64


def test_ranks_without_a_tag_are_never_added() -> None:
    lines = text_of("tests/logs/training/nemo2_llama3_8b.txt").splitlines()
    text = "\n".join(line for line in lines for _ in range(8 if "TFLOPS" in line else 1))
    (run,) = read_training_log(text + "\n").runs
    assert len(run.steps) == 5
    assert run.middle("time_s") == pytest.approx(6.07, rel=_PRINTED)
    assert "up to 8 lines" in run.warnings[0]


def _megatron(number: int, time_ms: float) -> str:
    return (
        f" iteration {number:8}/ 1000 | elapsed time per iteration (ms): {time_ms:.1f} |"
        " global batch size:  64 | lm loss: 1.0E+01 |\n"
    )


def _header(gpus: int) -> str:
    return f"using world size: {gpus}, data-parallel-size: {gpus}, tensor-model-parallel size: 1\n"


def test_runs_of_one_file_have_their_own_sizes() -> None:
    first = _header(32) + "".join(_megatron(n, 1000) for n in range(1, 9))
    # The second one goes on where the first stopped, on more GPUs.
    second = _header(64) + "".join(_megatron(n, 500) for n in range(9, 17))
    restart = "".join(_megatron(n, 520) for n in range(9, 17))
    runs = read_training_log(first + second + restart).runs
    assert [run.stated["gpus"] for run in runs] == [32, 64, 64]
    assert [run.middle("time_s") for run in runs] == pytest.approx([1.0, 0.5, 0.52])
    assert [len(run.steps) for run in runs] == [8, 8, 8]


def test_pauses_are_told_apart_from_spikes_and_drift() -> None:
    parts = []
    for number in range(1, 31):
        if number == 10:
            parts.append("saving checkpoint at iteration 9 to /checkpoints\n")
        if number == 20:
            parts.append(" validation loss at iteration 19 | lm loss value: 8.0E+00 |\n")
        parts.append(_megatron(number, 1800 if number in (1, 10, 20, 25) else 1000))
    (run,) = read_training_log("".join(parts)).runs
    kinds = dict(zip(run.steps.iteration.astype(int), run.steps.kind, strict=True))
    assert {n: kind for n, kind in kinds.items() if kind != "steady"} == {
        1: "warm-up",
        10: "checkpoint",
        20: "evaluation",
        25: "spike",
    }
    assert run.middle("time_s") == 1.0
    slower = "".join(_megatron(n, 1000 * (1 + 0.01 * n)) for n in range(1, 31))
    (drifting,) = read_training_log(slower).runs
    # Medians of iterations 2..10 and 22..30: 1.06 and 1.26.
    assert any("drift: the last third takes +19 %" in one for one in drifting.warnings)


@pytest.mark.parametrize(
    ("rows", "expected_ms"),
    [
        ("(min, max) time across ranks (ms):\n    forward-backward ..: (260.94, 260.95)\n", 260.95),
        ("max time across ranks (ms):\n    forward-backward ....: 260.95\n", 260.95),
        ("times across ranks (ms):\n  forward-backward:\n     rank  0: 260.95\n", 260.95),
        ("INFO:megatron.core.timers:(min, max) time across ranks (ms):\n"
         "    save-checkpoint ....: (24895.07, 24895.13)\n"
         "    forward-backward ....: (200.00, 210.00)\n", 210.0),
        ("time (ms) | forward-backward: 260.95 | optimizer: 3.0\n", 260.95),
    ],
)  # fmt: skip
def test_timers_of_every_level(rows: str, expected_ms: float) -> None:
    text = "".join(_megatron(n, 300) + rows for n in range(1, 5))
    (run,) = read_training_log(text).runs
    assert run.phases_s["forward-backward"] == pytest.approx(1e-3 * expected_ms)
    assert "save-checkpoint" not in run.phases_s


def test_torchtitan_validation_is_no_step_and_sizes_give_a_time() -> None:
    mesh = (
        "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, "
        "ep=4\nTrainer is initialized with local batch size 2, global batch size 64, "
        "gradient accumulation steps 8, sequence length 8192, total steps 100\n"
    )
    step = "step: {}  loss:  7.6  grad_norm: 2.1  memory: 66.91GiB(37.5%)  tps: 1,024  mfu: 10.0%\n"
    text = mesh + "".join(step.format(n) for n in range(1, 6))
    text += "validate step: 5  loss:  7.6  memory: 66.91GiB(37.5%)  tps: 9,999\n"
    (run,) = read_training_log(text).runs
    assert len(run.steps) == 5
    assert {name: run.stated[name] for name in ("gpus", "pp", "dp", "tp", "ep")} == {
        **{"gpus": 16, "pp": 2, "dp": 4, "tp": 2, "ep": 4}
    }
    # 64 sequences of 8192 tokens at 1024 tokens/s on each of 16 GPUs.
    assert run.middle("time_s") == 64 * 8192 / (1024 * 16) == 32


def test_bars_of_loading_and_evaluation_are_not_of_training() -> None:
    text = (
        "Loading checkpoint shards: 100%|##| 4/4 [00:40<00:00, 10.00s/it]\n"
        "  Total optimization steps = 1,000\n"
        "  1%|# | 10/1000 [00:20<33:00,  2.00s/it]\r  2%|# | 20/1000 [00:42<34:00,  2.10s/it]\n"
        "{'loss': 1.5, 'learning_rate': 1e-05, 'epoch': 0.02}\n"
        "100%|##| 50/50 [00:10<00:00,  5.00it/s]\n"
    )
    (run,) = read_training_log(text).runs
    assert run.middle("time_s") == 2.1
    assert "means over many iterations" in run.warnings[0]


def test_abbreviated_steps_of_bars_are_told_by_the_bars_own_number() -> None:
    bar = "Epoch 0:  90%|# | {}/3000 [1:03<2:00, global_step=2e+3, train_step_timing in s={}]\n"
    text = "".join(bar.format(2000 + n, 1.9 + 0.01 * n) for n in range(4))
    (run,) = read_training_log(text).runs
    assert run.steps.iteration.tolist() == [2000, 2001, 2002, 2003]


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory", "H100 80GB"),
        ("[titan] CUDA capacity: AMD Instinct MI355X with 287.98GiB memory", "MI355X"),
        ("|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:07:00.0", "A100-SXM4-40GB"),
        ("GPU = NVIDIA GeForce RTX 4090. Max memory = 23.52 GB.", None),
    ],
)
def test_gpus_are_named_as_drivers_name_them(line: str, device: str | None) -> None:
    assert read_training_log(line + "\n" + _megatron(1, 1000)).device == device


def test_mlperf_tokens_and_sizes() -> None:
    def line(key: str, value: str, metadata: str = "{}") -> str:
        return (
            f':::MLLOG {{"time_ms": 1, "key": "{key}", "value": {value}, "metadata": {metadata}}}\n'
        )

    text = line("global_batch_size", "1536") + line("max_sequence_length", "2048")
    text += line("tensor_parallelism", "4") + line("pipeline_parallelism", "8")
    text += line("number_of_nodes", "64") + line("accelerators_per_node", "8")
    stats = line("tracked_stats", '{"throughput": 1000000.0}', '{"step": 3145728}')
    (run,) = read_training_log(text + stats).runs
    assert {run.stated[name] for name in ("tp", "pp", "gpus")} == {4, 8, 512}
    assert run.middle("samples_per_s") == 1e6
    # GPT-3's samples are tokens: 1536 x 2048 tokens at 1e6 per second.
    (gpt3,) = read_training_log(text + line("submission_benchmark", '"gpt3"') + stats).runs
    assert gpt3.middle("time_s") == pytest.approx(3.145728)


def test_values_beyond_any_number_are_no_numbers() -> None:
    digits = "9" * 400
    for _, text, _, _ in VINTAGES.values():
        for number in ("20/", "8.788", "1024", "4.17"):
            try:
                log = read_training_log(text.replace(number, digits + number))
            except ReproError:
                continue
            for run in log.runs:
                assert all(math.isfinite(value) for value in run.stated.values())
