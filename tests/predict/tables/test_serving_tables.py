"""Tables of serving are read as they are written elsewhere, and refused with what is wrong."""

import pandas as pd
import pytest

from repro.errors import ReproError
from repro.predict.serving.memory import largest_batch
from repro.predict.tables.serving import (
    ServingRows,
    is_serving,
    model_called,
    serving_rows,
    unknown_serving,
)

_ONE = {
    "Model": "Llama-3.1-8B-Instruct",
    "GPU": "NVIDIA H100 80GB HBM3",
    "TP": 1,
    "Precision": "FP8",
    "ISL": 128,
    "OSL": 256,
    "Batch Size": 32,
    "Throughput (tok/s)": 4096.0,
}


def _table(**changed: object) -> pd.DataFrame:
    return pd.DataFrame([{**_ONE, **changed}])


def _only(table: pd.DataFrame) -> ServingRows:
    (one,) = serving_rows(table)
    return one


def test_throughput_says_how_long_writing_everything_took() -> None:
    one = _only(_table())
    assert one.total_s == pytest.approx(32 * 256 / 4096.0)
    assert (one.engine.weights, one.engine.cache) == ("fp8", "fp8")
    assert one.engine.device.label == "H100-SXM-80GB"
    assert (one.rows.layers, one.rows.kv_heads, one.rows.input_tokens) == (32, 8, 128)


def test_throughput_of_a_gpu_counts_all_of_them() -> None:
    table = _table(TP=4).rename(columns={"Throughput (tok/s)": "tokens/s/GPU"})
    assert _only(table).total_s == pytest.approx(32 * 256 / 4096.0 / 4)


def test_each_row_may_state_another_measured_value() -> None:
    rows = [{"latency_ms": 2000.0}, {"throughput": 4096.0}, {"tokens/s/GPU": 1024.0}]
    table = pd.concat([_table(TP=4).drop(columns="Throughput (tok/s)")] * 3, ignore_index=True)
    (served,) = serving_rows(table.join(pd.DataFrame(rows)))
    outputs = 32 * 256
    assert served.total_s.tolist() == [2.0, outputs / 4096, outputs / 1024 / 4]
    blank = table.join(pd.DataFrame([*rows[:2], {"latency_ms": None}]))
    with pytest.raises(ReproError, match="line 4: latency_ms is nan; must be a positive number"):
        list(serving_rows(blank))


def test_a_split_is_said_by_itself_or_by_the_number_of_gpus() -> None:
    assert _only(_table(gpus=4).drop(columns="TP")).rows.tp == 4
    assert _only(_table(gpus=4, tp_size=2).drop(columns="TP")).rows.tp == 2


def test_without_a_batch_there_are_as_many_sequences_as_fit() -> None:
    one = _only(_table(**{"Batch Size": None}))
    assert one.rows.batch == largest_batch(one.rows, one.engine) > 100


@pytest.mark.parametrize(
    ("written", "label"),
    [("TRT-LLM", "TensorRT-LLM"), ("trtllm", "TensorRT-LLM"), ("sglang", "SGLang")],
)
def test_engines_are_known_by_their_usual_names(written: str, label: str) -> None:
    assert _only(_table(engine=written)).engine.stack.label == label
    with pytest.raises(ReproError, match="unknown serving software 'FasterTransformer'"):
        _only(_table(engine="FasterTransformer"))


def test_gpt_oss_has_its_own_weights_under_any_name_below_half() -> None:
    for name in ("fp8", "FP4", "mxfp4"):
        one = _only(_table(Model="gpt-oss-120b", Precision=name))
        assert (one.engine.weights, one.engine.others) == ("mxfp4-experts", "bf16")
    assert _only(_table(Model="gpt-oss-120b", Precision="bf16")).engine.weights == "bf16"


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("DeepSeek-R1-0528", "fp8"),
        ("gpt-oss-20b", "mxfp4-experts"),
        ("DeepSeek-R1-Distill-Llama-70B", "bf16"),
        ("my own", "bf16"),
    ],
)
def test_without_a_precision_weights_are_as_published(model: str, weights: str) -> None:
    own = {"layers": 2, "hidden": 64, "heads": 2, "vocab": 100} if model == "my own" else {}
    assert _only(_table(Model=model, GPU="H200", Precision=None, **own)).engine.weights == weights


def test_throughput_of_mixtures_is_reached_with_attention_on_each_gpu() -> None:
    """As the recipes of TensorRT-LLM 1.0 do, where a table states neither batch nor split."""
    maverick = {"Model": "Llama 4 Maverick", "GPU": "H200", "TP": 8, "Batch Size": None}
    stated = {"engine": "TensorRT-LLM", "release": "1.0"}
    found = _only(_table(**maverick, **stated)).rows
    assert (found.tp, found.ep, found.gpus) == (1, 8, 8)
    for other in ({"release": "0.21"}, {"Batch Size": 64}, {"ep": 1}):
        found = _only(_table(**maverick | stated | other)).rows
        assert (found.tp, found.ep, found.gpus) == (8, 1, 8)


def test_attention_on_each_gpu_may_be_stated() -> None:
    deepseek = {"Model": "DeepSeek-R1", "GPU": "H200", "TP": 8, "engine": "sglang"}
    for stated in (True, "yes", 1):
        found = _only(_table(**deepseek, dp_attention=stated)).rows
        assert (found.tp, found.ep, found.gpus) == (1, 8, 8)
    assert _only(_table(**deepseek, dp_attention=True, ep=16)).rows.gpus == 16
    for other in ({}, {"dp_attention": "false"}):
        assert _only(_table(**deepseek, **other)).rows.tp == 8
    stated = {"engine": "TensorRT-LLM", "release": "1.0", "Batch Size": None, "dp_attention": "no"}
    assert _only(_table(**deepseek | stated)).rows.tp == 8


def test_rows_that_cannot_be_split_are_named() -> None:
    rows = [
        {},
        {"TP": 3},
        {"dp_attention": "yes"},
        {"Model": "Mixtral 8x7B", "TP": 8, "dp_attention": "yes"},
        {"Model": "abacus-9", "TP": 3},
        {"GPU": "A100"},
    ]
    table = pd.concat([_table(**one) for one in rows], ignore_index=True)
    reasons = unknown_serving(table).tolist()
    assert reasons[0] == reasons[3] == ""
    assert reasons[1] == "tp 3 does not divide 32 heads; fix: take one of its divisors"
    assert reasons[2] == "dp_attention is yes, which dense layers do not have; fix: no"
    assert reasons[4].startswith("unknown model 'abacus-9'")
    assert reasons[5].startswith("precision 'fp8': A100-SXM-80GB has no units")


def test_latencies_with_a_shape_of_their_own() -> None:
    table = pd.DataFrame(
        {
            "set": ["fastertransformer_gpt"],
            "gpu": ["A100-SXM-80GB"],
            **{"layers": 24, "hidden": 1024, "heads": 16, "vocab": 51200, "dtype": "fp16"},
            **{"batch": 4, "input_len": 128, "output_len": 8, "tp": 1, "pp": 1, "latency_ms": 28.0},
        }
    )
    assert is_serving(table)
    one = _only(table)
    assert one.total_s == pytest.approx(0.028)
    assert (one.rows.ffn, one.rows.kv_heads, one.rows.head_dim, one.rows.gated_mlp) == (
        4096,
        16,
        64,
        0,
    )
    assert one.engine.stack.label.startswith("FasterTransformer")


def test_rows_without_a_shape_of_their_own_are_the_model_that_they_name() -> None:
    own = {"layers": 2, "hidden": 64, "heads": 2, "vocab": 100}
    table = pd.concat([_table(), _table(Model="my own").assign(**own)], ignore_index=True)
    named, mine = _only(table).rows.layers, _only(table).rows.hidden
    assert named.tolist() == [32, 2]
    assert mine.tolist() == [4096, 64]


def test_other_tables_are_not_of_serving() -> None:
    assert not is_serving(pd.DataFrame({"gpu": ["h100"], "iteration_time_s": [1.0]}))


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("meta-llama/Llama-2-70b-chat-hf", "Llama 2 70B"),
        ("LLaMA 7B", "Llama 2 7B"),
        ("Llama v3.1 405B", "Llama 3.1 405B"),
        ("llama3.3_70b_fp8", "Llama 3.1 70B"),
        ("GPTJ 6B", "GPT-J 6B"),
        ("Mixtral-8x7B-Instruct-v0.1", "Mixtral 8x7B"),
        ("nvidia/Llama-3.1-405B-Instruct-FP4", "Llama 3.1 405B"),
    ],
)
def test_models_are_known_by_their_usual_names(written: str, label: str) -> None:
    assert model_called(written).label == label


@pytest.mark.parametrize("written", ["DeepSeek-V3.2", "Llama 3.1 8B deeper", "GPT-OSS 120B v2"])
def test_no_model_is_taken_for_one_whose_name_is_part_of_its(written: str) -> None:
    with pytest.raises(ReproError, match=f"unknown model '{written}'; choose from: "):
        model_called(written)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"Model": "abacus-9"}, "unknown model 'abacus-9'; choose from: tinyllama-1.1b"),
        ({"GPU": "TPU v4"}, "unknown GPU 'TPU v4'"),
        ({"GPU": "NVIDIA H100 PCIe"}, "unknown GPU 'NVIDIA H100 PCIe'; choose from: a100-sxm-80gb"),
        ({"Precision": "int3"}, "unknown precision 'int3'"),
        ({"GPU": "A100"}, "precision 'fp8': A100-SXM-80GB has no units for it; take bf16"),
        (
            {"Batch Size": 0},
            "line 2: batch is 0; must be a number of 1 or more; fix: correct it or leave it blank$",
        ),
        (
            {"ISL": "short"},
            "line 2: input_len is 'short'; must be a number of 1 or more; fix: correct it$",
        ),
        (
            {"Throughput (tok/s)": -1.0},
            "line 2: tokens_per_s is -1.0; must be a positive number; fix: correct it or leave",
        ),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ReproError, match=message):
        _only(_table(**changed))
