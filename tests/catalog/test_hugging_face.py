"""Decoders of config.json files have the parameters that authors and transformers count."""

import csv
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from repro.catalog.models.decoder_types import DECODER_TYPES
from repro.catalog.models.hugging_face import ModelFile, read_config, read_fields
from repro.catalog.models.ignored_fields import read_ignored
from repro.errors import ReproError

CONFIGS = Path(__file__).parent / "configs"
with (CONFIGS / "INDEX.csv").open(encoding="utf-8") as file:
    INDEX = {row["file"]: row for row in csv.DictReader(file)}
REFUSED = {
    "glm-5.json": "model_type 'glm_moe_dsa'",
    "jamba-1.5-mini.json": "model_type 'jamba'",
    "nemotron-3-nano-30b-a3b.json": "model_type 'nemotron_h'",
    "nemotron-h-56b.json": "model_type 'nemotron_h'",
}
UNDERSTOOD = sorted(set(INDEX) - set(REFUSED))
SMALL: list[dict[str, Any]] = yaml.safe_load((CONFIGS / "model_types.yaml").read_text())
# Authors count something else, by the sources of INDEX.csv: the layer that predicts further tokens
# (GLM-4.5, MiMo), images (Llama 4), tied tables (Granite), or they round to one or two digits.
ELSEWHERE = {
    *("falcon-40b.json", "glm-4.5-355b.json", "granite-3.0-1b-a400m.json", "granite-3.1-2b.json"),
    *("llama-4-scout-text.json", "mimo-7b.json", "minimax-m2.5.json", "phi-mini-moe.json"),
    *("qwen2.5-0.5b.json", "qwen2.5-32b.json"),
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


def _fields(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((CONFIGS / name).read_text())
    return fields


def _count(fields: dict[str, Any]) -> int:
    shape = read_fields(fields, "small").shape
    return shape.count(shape.experts)


def _refusal(**fields: Any) -> str:
    with pytest.raises(ReproError) as refusal:
        read_fields(fields, "small")
    return str(refusal.value)


def test_the_index_lists_all_files() -> None:
    assert {path.name for path in CONFIGS.glob("*.json")} == set(INDEX)


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_parameters_are_those_of_the_weights(name: str) -> None:
    row, shape = INDEX[name], read_config(CONFIGS / name).shape
    assert shape.count(shape.experts) == pytest.approx(float(row["own_total"]), rel=2e-4)
    if row["own_active"]:
        active = shape.count(shape.experts_per_token)
        assert active == pytest.approx(float(row["own_active"]), rel=5e-4)


@pytest.mark.parametrize("name", sorted(set(UNDERSTOOD) - ELSEWHERE))
def test_parameters_are_those_that_authors_state(name: str) -> None:
    shape = read_config(CONFIGS / name).shape
    stated = float(INDEX[name]["published_total"])
    assert shape.count(shape.experts) == pytest.approx(stated, rel=0.005)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_other_architectures_are_refused_by_name(name: str) -> None:
    with pytest.raises(ReproError, match=REFUSED[name]) as refusal:
        read_config(CONFIGS / name)
    assert "llama" in str(refusal.value) and name in str(refusal.value)


@pytest.mark.parametrize(
    "fields", SMALL, ids=[f"{at}-{one['model_type']}" for at, one in enumerate(SMALL)]
)
def test_small_models_of_each_type_are_those_of_transformers(fields: dict[str, Any]) -> None:
    given = {name: value for name, value in fields.items() if name != "parameters"}
    assert _count(given) == pytest.approx(fields["parameters"], rel=1e-3)


def test_all_types_of_transformers_are_compared() -> None:
    compared = {one["model_type"].removesuffix("_text") for one in SMALL}
    # These come with the models' files; one of each is below or in the index.
    remote = {"qwen", "deepseek", "kimi_k2", "internlm2", "minicpm"}
    remote |= {"chatglm", "baichuan", "mimo", "minimax_m2"}
    assert set(DECODER_TYPES) == compared | remote


def test_types_that_come_with_their_files() -> None:
    # Published: Qwen-7B 7.72e9, DeepSeekMoE 16B 16.4e9, Kimi K2 1.04e12 and 32.6e9 active,
    # InternLM2-7B 7.74e9, MiniCPM-2B 2.72e9.
    qwen = {
        **{"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "kv_channels": 128},
        **{"num_attention_heads": 32, "intermediate_size": 22016, "vocab_size": 151936},
        **{"no_bias": True, "seq_length": 8192, "tie_word_embeddings": False, "bf16": True},
    }
    deepseek = {
        **{"model_type": "deepseek", "hidden_size": 2048, "num_hidden_layers": 28},
        **{"num_attention_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408},
        **{"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6},
        **{"first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 102400},
    }
    kimi = {
        **_fields("deepseek-v3.json"),
        **{"model_type": "kimi_k2", "num_attention_heads": 64, "n_routed_experts": 384},
        **{"first_k_dense_replace": 1, "vocab_size": 163840, "num_nextn_predict_layers": 0},
    }
    internlm = {
        **{"model_type": "internlm2", "hidden_size": 4096, "num_hidden_layers": 32, "bias": False},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336},
        **{"vocab_size": 92544, "tie_word_embeddings": False},
    }
    minicpm = {
        **{"model_type": "minicpm", "hidden_size": 2304, "num_hidden_layers": 40, "scale_emb": 12},
        **{"num_attention_heads": 36, "intermediate_size": 5760, "vocab_size": 122753},
    }
    assert _count(qwen) == pytest.approx(7.72e9, rel=0.005)
    assert _count(deepseek) == pytest.approx(16.4e9, rel=0.005)
    assert _count(kimi) == pytest.approx(1.04e12, rel=0.02)
    assert read_fields(kimi, "").shape.count(8) == pytest.approx(32.6e9, rel=0.02)
    assert _count(internlm) == pytest.approx(7.74e9, rel=0.005)
    assert _count(minicpm) == pytest.approx(2.72e9, rel=0.005)


def test_tables_are_shared_by_default_where_the_type_shares_them() -> None:
    for name, tied in {"gemma-2-2b": True, "command-r-35b": True, "falcon-40b": True}.items():
        found = read_config(CONFIGS / f"{name}.json")
        assert found.shape.tied is tied
        assert any(note.startswith("tied embeddings, the default of") for note in found.notes)
    found = read_config(CONFIGS / "granite-3.1-2b.json")
    assert not found.shape.tied
    assert "untied embeddings, the default of granite" in found.notes
    stated = _fields("granite-3.1-2b.json") | {"tie_word_embeddings": True}
    # The note of INDEX.csv: tied it is 2,533,531,648.
    assert _count(stated) == 2_533_531_648


def test_a_head_need_not_be_a_part_of_the_hidden_state() -> None:
    assert read_config(CONFIGS / "mistral-nemo-12b.json").shape.head_dim == 128  # 5120 / 32 = 160
    # Gemma 3 12B states neither width: 256 wide, while 3840 / 16 = 240.
    text = {
        **{"hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16},
        **{"num_hidden_layers": 48, "num_key_value_heads": 8, "model_type": "gemma3_text"},
    }
    found = read_fields(
        {"model_type": "gemma3", "text_config": text, "vision_config": {"a": 1}}, ""
    )
    assert found.shape.head_dim == 256
    # The Gemma 3 report: 1,012e6 embedding and 10,759e6 other parameters.
    assert found.shape.count(0) == pytest.approx(11.771e9, rel=0.005)
    assert "head_dim 256, the default of gemma3" in found.notes
    assert {"without vision_config", "text part only, of text_config"} <= set(found.notes)


def test_latent_attention_without_compressed_queries() -> None:
    shape = read_config(CONFIGS / "deepseek-v2-lite.json").shape
    assert (shape.query_rank, shape.kv_rank, shape.head_dim, shape.value_dim) == (0, 512, 192, 128)
    assert (shape.dense_layers, shape.dense_ffn, shape.shared_expert_ffn) == (1, 10944, 2816)
    shape = read_config(CONFIGS / "deepseek-v3.json").shape
    assert (shape.query_rank, shape.dense_layers, shape.mtp_layers) == (1536, 3, 1)


def test_every_other_layer_is_a_mixture() -> None:
    fields = _fields("deepseek-v3.json") | {"moe_layer_freq": 2}
    # Layers 4, 6, ... 60 of 61, from 0.
    assert read_fields(fields, "").shape.dense_layers == 61 - 29
    assert "moe_layer_freq is [0, 1]" in _refusal(**fields | {"moe_layer_freq": [0, 1]})
    assert "n_shared_experts is None" not in _refusal(**fields | {"hidden_size": None})
    del fields["n_shared_experts"]
    assert "n_shared_experts is None" in _refusal(**fields)


def test_widths_that_a_type_does_not_use() -> None:
    small = next(one for one in SMALL if one["model_type"] == "qwen3_moe")
    given = {name: value for name, value in small.items() if name != "parameters"}
    assert _count(given) == _count(given | {"intermediate_size": 99_999})
    assert read_config(CONFIGS / "mixtral-8x7b.json").shape.expert_ffn == 14336
    llama4 = next(one for one in SMALL if one["model_type"] == "llama4_text")
    shape = read_fields({k: v for k, v in llama4.items() if k != "parameters"}, "").shape
    assert (shape.dense_layers, shape.dense_ffn, shape.expert_ffn) == (3, 2048, 1792)


def test_predicted_tokens_are_not_counted() -> None:
    fields = _fields("mimo-7b.json")
    assert read_fields(fields, "").shape.mtp_layers == 1
    assert _count(fields) == _count(fields | {"num_nextn_predict_layers": 0})
    assert read_config(CONFIGS / "minimax-m2.5.json").shape.mtp_layers == 3
    without = _fields("minimax-m2.5.json") | {"use_mtp": False}
    assert read_fields(without, "").shape.mtp_layers == 0


@pytest.mark.parametrize(
    ("name", "window", "share"),
    [
        ("mistral-7b-v0.1.json", 4096, 1),
        ("mixtral-8x7b.json", 0, None),
        ("qwen2.5-32b.json", 0, None),
        ("gemma-2-9b.json", 4096, 1 / 2),
        ("gemma-3-27b-multimodal.json", 1024, 52 / 62),  # Layers 6, 12, ... 60 attend to all.
        ("gpt-oss-120b.json", 128, 1 / 2),
        ("olmo-3.1-32b.json", 4096, 3 / 4),
        ("llama-4-scout-text.json", 8192, 3 / 4),
    ],
)
def test_windows_and_the_layers_that_have_them(name: str, window: int, share: float) -> None:
    fields = _fields(name)
    shape = read_fields(fields, "").shape
    assert shape.window == window
    assert not window or shape.windowed == pytest.approx(share)


def test_windows_have_no_parameters_and_are_off_unless_used() -> None:
    fields = _fields("qwen2.5-32b.json")
    used = fields | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 48}
    assert _count(used) == _count(fields)
    shape = read_fields(used, "").shape
    assert (shape.window, shape.windowed) == (4096, pytest.approx(16 / 64))
    # A mistral without the field has its class's window, one with null has none.
    mistral = _fields("mistral-7b-v0.1.json")
    assert read_fields(mistral | {"sliding_window": None}, "").shape.window == 0
    del mistral["sliding_window"]
    assert "window 4096, the default of mistral" in read_fields(mistral, "").notes


def test_chunks_of_llama_4() -> None:
    fields = _fields("llama-4-scout-text.json")
    assert "chunks of 8192 tokens, as a window of as many" in read_fields(fields, "").notes
    text = fields["text_config"]
    for changed, window, share in [
        ({"attention_chunk_size": None}, 0, 0.75),
        ({"no_rope_layers": [1] * 24 + [0] * 24}, 8192, 0.5),
        ({"layer_types": ["chunked_attention"] * 12 + ["full_attention"] * 36}, 8192, 0.25),
    ]:
        shape = read_fields(fields | {"text_config": {**text, **changed}}, "").shape
        assert (shape.window, shape.windowed) == (window, share)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number_of_brains", 3),
        ("sliding_window", 4096),
        ("attention_chunk_size", 8192),
        ("n_shared_experts", 1),
        ("num_experts", 8),
        ("index_topk", 2048),
        ("linear_num_key_heads", 16),
        ("use_sliding_window", True),
        ("is_encoder_decoder", True),
        ("add_cross_attention", True),
        ("num_nextn_predict_layers", 1),
    ],
)
def test_a_field_that_changes_the_structure_is_refused_by_name(field: str, value: Any) -> None:
    message = _refusal(**LLAMA, **{field: value})
    assert message.startswith(
        f"field {field} ({value!r}) is not understood of a llama; understood: "
    )
    assert "num_hidden_layers" in message and "\n" not in message
    assert read_fields(LLAMA | {field: None}, "").shape.layers == 4


def test_layers_of_other_kinds_are_refused() -> None:
    kinds = ["full_attention", "linear_attention"] * 2
    assert "layer_types has 'linear_attention'" in _refusal(**LLAMA, layer_types=kinds)
    assert "must list 4 layers" in _refusal(**LLAMA, layer_types=["full_attention"])
    sliding = ["sliding_attention"] * 4
    assert "fix: add sliding_window" in _refusal(**LLAMA, layer_types=sliding)
    assert "qwen3_next" in _refusal(**LLAMA | {"model_type": "qwen3_next"})
    assert "model_type 'None'" in _refusal(hidden_size=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": None}, "hidden_size or n_embd or d_model is None"),
        ({"intermediate_size": None}, "intermediate_size or ffn_dim"),
        ({"vocab_size": 0}, "padded_vocab_size or vocab_size is 0"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'; must be a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; must be a whole number"),
        ({"num_hidden_layers": 10**6}, "1000000 layers; must be 10000 at most"),
        (
            {"num_attention_heads": 7},
            "512 is no multiple of 7 heads; fix: add head_dim",
        ),
        ({"num_key_value_heads": 3}, "8 heads are no multiple of 3 key-value heads"),
        ({"tie_word_embeddings": "perhaps"}, "tied"),
    ],
)
def test_wrong_dimensions_are_named(changed: dict[str, Any], message: str) -> None:
    assert message in _refusal(**LLAMA | changed)


def test_experts_must_be_stated() -> None:
    mixtral = _fields("mixtral-8x7b.json")
    for name in ("num_local_experts", "num_experts_per_tok"):
        assert name in _refusal(**{one: of for one, of in mixtral.items() if one != name})
    assert "16 experts per token of 8 experts" in _refusal(**mixtral | {"num_experts_per_tok": 16})


def test_sequences_and_where_their_length_is_from() -> None:
    def read(**changed: Any) -> tuple[int, str]:
        found = read_fields(LLAMA | changed, "")
        return found.shape.seq, next(one for one in found.notes if one.startswith("sequence"))

    assert read(max_position_embeddings=2048) == (2048, "sequence length 2048, from config.json")
    many = "sequence length 8192, as config.json allows 131072"
    assert read(max_position_embeddings=131072) == (8192, many)
    assert read() == (8192, "sequence length 8192, as not given")
    scaling = {"original_max_position_embeddings": 4096}
    assert read(max_position_embeddings=163840, rope_scaling=scaling)[0] == 4096


def test_learned_positions_are_counted() -> None:
    fields = _fields("gpt2-xl.json")
    assert _count(fields | {"n_positions": 2048}) - _count(fields) == 1024 * 1600


def test_files_that_are_no_configurations(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, message in [("{", "not JSON"), ("[]", "not an object"), ("[" * 10**5, "not JSON")]:
        path.write_text(text)
        with pytest.raises(ReproError, match=message):
            read_config(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ReproError, match="not JSON"):
        read_config(path)
    with pytest.raises(ReproError, match="fix: name a readable"):
        read_config(tmp_path / "none.json")
    with pytest.raises(ReproError, match="fix: name a readable"):
        read_config(tmp_path)


def test_no_field_of_a_type_is_also_ignored() -> None:
    ignored = read_ignored().config
    for name, of_type in DECODER_TYPES.items():
        read = {*of_type.fields, *of_type.bias_fields}
        assert [one for one in read if ignored.covers(one, True)] == [], name


_VALUES = [
    *(None, True, False, 0, -1, 1, 3, 2.5, float("nan"), float("inf"), 10**30, "", "8", "a" * 99),
    *([], [1] * 5, {}, {"a": 1}, ["full_attention"] * 32, "LLLG", [[]]),
]


@pytest.mark.parametrize("seed", range(10))
def test_mutated_configurations_are_read_or_refused(seed: int) -> None:
    source, ended = random.Random(seed), Counter[str]()
    files = [_fields(name) for name in UNDERSTOOD] + SMALL
    names = sorted({name for fields in files for name in fields} | {"text_config", "layer_types"})
    for _ in range(1000):
        fields = {k: v for k, v in source.choice(files).items() if k != "parameters"}
        for _ in range(source.randint(1, 3)):
            name = source.choice(list(fields) if source.random() < 0.7 else names)
            if source.random() < 0.2:
                fields.pop(name, None)
            else:
                fields[name] = source.choice(_VALUES)
        try:
            found = read_fields(fields, "mutated")
        except ReproError as refusal:
            assert "\n" not in str(refusal)
            ended["refused"] += 1
        else:
            assert isinstance(found, ModelFile) and found.shape.count(found.shape.experts) > 0
            ended["read"] += 1
    assert min(ended.values()) > 100
