"""Decoders from Hugging Face's `config.json`, by `model_type`.

Every field must be understood: it gives a dimension, or it changes neither sizes nor times. Rules
per type follow the classes of transformers 4.57 and the files of `tests/catalog/configs/`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from repro.catalog.models.ignored_fields import read_ignored
from repro.catalog.models.open_models import DecoderShape
from repro.errors import ReproError

Fields = Mapping[str, Any]

# Longest sequence that is assumed for training where a file states what the model can take in.
LONGEST_ASSUMED = 8192
# Names of one dimension in the files of different types.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels"),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "positions": ("max_position_embeddings", "n_positions", "seq_length"),
}
_DIMENSIONS = frozenset(name for names in _NAMES.values() for name in names)


@dataclass(frozen=True)
class _Type:
    """Rules of a `model_type`.

    Attributes
    ----------
    gated
        Whether an MLP has three matrices.
    tied
        Whether tables are shared where the file does not say so.
    biases
        Which linear layers have biases, or the field that says whether they have.
    fields
        Further fields that it has, which `rules` read.
    rules
        Further dimensions, of the file and the common ones.
    positions
        Whether it has a table of learned positions.
    """

    gated: bool = True
    tied: bool = False
    biases: str = "none"
    fields: tuple[str, ...] = ()
    rules: tuple[Callable[[Fields, dict[str, Any]], dict[str, Any]], ...] = ()
    positions: bool = False


@dataclass(frozen=True)
class ModelFile:
    """Decoder of a file.

    Attributes
    ----------
    label
        Name for messages.
    shape
        Dimensions.
    notes
        What was taken from where, or assumed; one phrase each.
    """

    label: str
    shape: DecoderShape
    notes: tuple[str, ...] = field(default=())


def read_config(path: Path) -> ModelFile:
    """Read a decoder from a `config.json`.

    Raises
    ------
    ReproError
        The file cannot be read; its type or a field is not understood, or a dimension is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReproError(f"{path}: {error.strerror}; fix: name a readable config.json") from None
    except UnicodeDecodeError as error:
        raise ReproError(f"{path}: not JSON ({error}); fix: give a config.json") from None
    try:
        return parse_config(text, path.stem)
    except ReproError as error:
        raise ReproError(f"{path}: {error}") from None


def parse_config(text: str, label: str) -> ModelFile:
    """Read a decoder from the text of a `config.json`.

    Raises
    ------
    ReproError
        The text is no JSON object, its type or a field is not understood, or a dimension is
        missing.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReproError(f"not JSON ({error}); fix: give a config.json") from None
    if not isinstance(given, dict):
        raise ReproError("not an object with fields; fix: give a config.json")
    return read_fields(given, label)


def read_fields(given: Fields, label: str) -> ModelFile:
    """Read a decoder from the fields of a `config.json`.

    Raises
    ------
    ReproError
        The type or a field is not understood, or a dimension is missing or wrong.
    """
    notes: list[str] = []
    text = given.get("text_config")
    if isinstance(text, dict):
        given = {"model_type": given.get("model_type"), **text}
        notes.append("text part only, of text_config")
    name = str(given.get("model_type"))
    if name not in _TYPES:
        raise ReproError(f"model_type {name!r} is not understood; understood: {', '.join(_TYPES)}")
    of_type = _TYPES[name]
    _refuse_unknown(given, name, of_type)
    try:
        shape = _shape(given, name, of_type, notes)
    except ValidationError as error:
        first = error.errors()[0]
        raise ReproError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise ReproError(f"a dimension is no number that fits the others ({error})") from None
    return ModelFile(label, shape, tuple(notes))


def _refuse_unknown(given: Fields, name: str, of_type: _Type) -> None:
    known, ignored = {*_DIMENSIONS, *_COMMON, *of_type.fields}, read_ignored().config
    unknown = [
        one
        for one, value in given.items()
        if one not in known and value is not None and not ignored.covers(one)
    ]
    if unknown:
        understood = sorted({*_DIMENSIONS, *_COMMON, *of_type.fields})
        raise ReproError(
            f"field {unknown[0]} ({given[unknown[0]]!r:.40}) is not understood of a {name}; "
            f"understood: {', '.join(understood)}"
        )


# Fields that any type may have.
_COMMON = (
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "qkv_bias"),
    *("sliding_window", "sliding_window_size", "use_sliding_window", "layer_types"),
    *("sliding_window_pattern", "_sliding_window_pattern", "max_window_layers"),
)


def _first(given: Fields, dimension: str) -> Any:
    return next((given[one] for one in _NAMES[dimension] if given.get(one) is not None), None)


def _needed(given: Fields, dimension: str) -> int:
    value = _first(given, dimension)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        names = " or ".join(_NAMES[dimension])
        raise ReproError(f"{names} is {value!r}; must be a whole number above 0")
    return value


def _shape(given: Fields, name: str, of_type: _Type, notes: list[str]) -> DecoderShape:
    hidden, heads = _needed(given, "hidden"), _needed(given, "heads")
    head_dim = _first(given, "head_dim")
    if head_dim is None and hidden % heads:
        raise ReproError(f"hidden size {hidden} is no multiple of {heads} heads; fix: add head_dim")
    shape: dict[str, Any] = {
        "layers": _needed(given, "layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _first(given, "kv_heads") or heads,
        "head_dim": head_dim or hidden // heads,
        "ffn": _first(given, "ffn") or 4 * hidden,
        "gated_mlp": of_type.gated,
        "vocab": _needed(given, "vocab") if _first(given, "vocab") else None,
        "tied": given.get("tie_word_embeddings", of_type.tied),
        "biases": _biases(given, of_type),
        **_sequence(given, of_type, notes),
        **_window(given, name),
    }
    if given.get("tie_word_embeddings") is None:
        notes.append(f"{'tied' if of_type.tied else 'untied'} embeddings, the default of {name}")
    for rule in of_type.rules:
        shape |= rule(given, shape)
    if shape["vocab"] is None:
        raise ReproError("vocab_size is missing; fix: add it")
    if shape["heads"] % shape["kv_heads"]:
        raise ReproError(f"{heads} heads are no multiple of {shape['kv_heads']} key-value heads")
    return DecoderShape(**shape)


def _biases(given: Fields, of_type: _Type) -> Literal["none", "qkv", "all"]:
    if of_type.biases == "none":
        return "qkv" if given.get("attention_bias") or given.get("qkv_bias") else "none"
    if of_type.biases == "qkv":
        return "qkv"
    # Otherwise a field says whether all linear layers have biases.
    return "all" if of_type.biases == "all" or given.get(of_type.biases, True) else "none"


def _sequence(given: Fields, of_type: _Type, notes: list[str]) -> dict[str, int]:
    """Return the tokens of a sequence: what the model was made for, at most `LONGEST_ASSUMED`."""
    longest = _first(given, "positions")
    scaling = given.get("rope_scaling") or given.get("rope_parameters") or {}
    before = scaling.get("original_max_position_embeddings") if isinstance(scaling, dict) else None
    stated = given.get("initial_context_length") or before or longest or LONGEST_ASSUMED
    seq = min(int(stated), LONGEST_ASSUMED)
    notes.append(
        f"sequence length {seq}, "
        + ("from config.json" if seq == stated else f"as config.json allows {stated}")
    )
    return {"seq": seq, "positions": int(longest or 0) if of_type.positions else 0}


def _window(given: Fields, name: str) -> dict[str, Any]:
    """Return the window of attention and the share of layers that have it."""
    window = given.get("sliding_window") or given.get("sliding_window_size")
    layers = _needed(given, "layers")
    if name in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "mimo"):
        if not given.get("use_sliding_window"):
            return {}
        share = 1 - given.get("max_window_layers", 0) / layers
        return {"window": window, "windowed": share} if window else {}
    kinds = given.get("layer_types")
    if isinstance(kinds, list):
        unknown = set(kinds) - {"full_attention", "sliding_attention", "chunked_attention"}
        if unknown or len(kinds) != layers:
            raise ReproError(f"layer_types: {sorted(unknown)} or a length other than {layers}")
        share = 1 - kinds.count("full_attention") / layers
    else:
        pattern = given.get("sliding_window_pattern") or given.get("_sliding_window_pattern")
        pattern = pattern or _PATTERNS.get(name)
        share = 1 - 1 / pattern if pattern else 1.0
    return {"window": window, "windowed": share} if window and share else {}


# One layer of so many attends to all tokens, where the file does not say so.
_PATTERNS = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "olmo3": 4}


def _integer(given: Fields, name: str, default: int | None = None) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ReproError(f"{name} is {value!r}; must be a whole number")
    return value


def _experts_of_all_layers(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    """Return the experts of Mixtral and types like it, which are as wide as `intermediate_size`."""
    experts = given.get("num_local_experts", given.get("num_experts"))
    return {
        "ffn": 0,
        "experts": experts,
        "experts_per_token": _integer(
            given, "num_experts_per_tok", given.get("experts_per_token", 2)
        ),
        "expert_ffn": shape["ffn"],
        "shared_expert_ffn": given.get("shared_intermediate_size") or 0,
    }


def _qwen_experts(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    layers, step = shape["layers"], _integer(given, "decoder_sparse_step", 1)
    dense = given.get("mlp_only_layers") or []
    if not isinstance(dense, list) or step < 1:
        raise ReproError(f"mlp_only_layers {dense!r}, decoder_sparse_step {step}: not understood")
    mixed = [one for one in range(layers) if one not in dense and (one + 1) % step == 0]
    return _mixture(
        given,
        shape,
        experts=_integer(given, "num_experts"),
        shared=_integer(given, "shared_expert_intermediate_size", 0),
        dense_layers=layers - len(mixed),
    )


def _routed_experts(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    """Return the experts of DeepSeek and types like it, whose first layers are dense."""
    layers, first = shape["layers"], _integer(given, "first_k_dense_replace", 0)
    every = _integer(given, "moe_layer_freq", 1)
    if every < 1:
        raise ReproError(f"moe_layer_freq is {every}; must be 1 or more")
    mixed = sum(1 for one in range(layers) if one >= first and one % every == 0)
    width = _integer(given, "moe_intermediate_size")
    return _mixture(
        given,
        shape,
        experts=_integer(given, "n_routed_experts"),
        shared=width * _integer(given, "n_shared_experts", 0),
        dense_layers=layers - mixed,
    )


def _mixture(
    given: Fields, shape: dict[str, Any], *, experts: int, shared: int, dense_layers: int
) -> dict[str, Any]:
    return {
        "ffn": 0,
        "experts": experts,
        "experts_per_token": _integer(given, "num_experts_per_tok"),
        "expert_ffn": _integer(given, "moe_intermediate_size"),
        "shared_expert_ffn": shared,
        "dense_layers": dense_layers,
        "dense_ffn": shape["ffn"] if dense_layers else 0,
        "mtp_layers": _integer(given, "num_nextn_predict_layers", 0),
    }


def _latent_attention(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    rope = _integer(given, "qk_rope_head_dim")
    return {
        "kv_heads": shape["heads"],
        "head_dim": _integer(given, "qk_nope_head_dim") + rope,
        "value_dim": _integer(given, "v_head_dim"),
        "kv_rank": _integer(given, "kv_lora_rank"),
        "query_rank": given.get("q_lora_rank") or 0,
        "rope_dim": rope,
    }


def _llama4(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    """Return Llama 4's experts, in every `interleave_moe_layer_step`-th layer, and its chunks."""
    step = _integer(given, "interleave_moe_layer_step", 1)
    if step < 1:
        raise ReproError(f"interleave_moe_layer_step is {step}; must be 1 or more")
    dense = shape["layers"] - shape["layers"] // step
    return {
        "ffn": 0,
        "experts": _integer(given, "num_local_experts"),
        "experts_per_token": _integer(given, "num_experts_per_tok", 1),
        "expert_ffn": shape["ffn"],
        "shared_expert_ffn": shape["ffn"],
        "dense_layers": dense,
        "dense_ffn": _integer(given, "intermediate_size_mlp", 0) if dense else 0,
        "window": _integer(given, "attention_chunk_size", 0),
        "windowed": 0.75,
    }


def _falcon(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    if given.get("new_decoder_architecture"):
        return {}
    return {"kv_heads": 1 if given.get("multi_query", True) else shape["heads"]}


def _gemma3(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    return {"vocab": shape["vocab"] or 262208}


def _chatglm(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    return {"kv_heads": shape["kv_heads"] if given.get("multi_query_attention") else shape["heads"]}


def _same_width(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    if given.get("word_embed_proj_dim", shape["hidden"]) != shape["hidden"]:
        raise ReproError("word_embed_proj_dim is not hidden_size, which is not understood")
    return {}


def _predicts_ahead(given: Fields, shape: dict[str, Any]) -> dict[str, Any]:
    used = given.get("use_mtp", True)
    name = "num_mtp_modules" if "num_mtp_modules" in given else "num_nextn_predict_layers"
    return {"mtp_layers": _integer(given, name, 0) if used else 0}


_SPARSE = (
    *("num_local_experts", "num_experts", "num_experts_per_tok", "experts_per_token"),
    *("shared_intermediate_size", "moe_intermediate_size"),
)
_ROUTED = (
    *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("first_k_dense_replace", "moe_layer_freq", "num_nextn_predict_layers"),
)
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DEEPSEEK = _Type(fields=(*_ROUTED, *_LATENT), rules=(_routed_experts, _latent_attention))
_QWEN_MOE_FIELDS = (
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"),
    *("shared_expert_intermediate_size", "mlp_only_layers"),
)
_LIKE_MIXTRAL = _Type(fields=_SPARSE, rules=(_experts_of_all_layers,))
_LLAMA4 = _Type(
    fields=(
        *("num_local_experts", "num_experts_per_tok", "interleave_moe_layer_step"),
        *("intermediate_size_mlp", "attention_chunk_size", "moe_layers"),
    ),
    rules=(_llama4,),
)
_GEMMA3 = _Type(tied=True, rules=(_gemma3,))
_MTP_FIELDS = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_transformer_layers", "use_mtp")
_TYPES: Mapping[str, _Type] = {
    "llama": _Type(),
    "mistral": _Type(),
    "qwen2": _Type(biases="qkv"),
    "qwen3": _Type(),
    "qwen2_moe": _Type(biases="qkv", fields=_QWEN_MOE_FIELDS, rules=(_qwen_experts,)),
    "qwen3_moe": _Type(fields=_QWEN_MOE_FIELDS, rules=(_qwen_experts,)),
    "mixtral": _LIKE_MIXTRAL,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "gpt_oss": _Type(biases="all", fields=_SPARSE, rules=(_experts_of_all_layers,)),
    "gemma": _Type(tied=True),
    "gemma2": _Type(tied=True),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "phi3": _Type(),
    "phimoe": _Type(biases="attention_bias", fields=_SPARSE, rules=(_experts_of_all_layers,)),
    "falcon": _Type(
        gated=False,
        tied=True,
        biases="bias",
        fields=("bias", "multi_query", "new_decoder_architecture"),
        rules=(_falcon,),
    ),
    "gpt2": _Type(gated=False, tied=True, biases="all", positions=True),
    "gpt_neox": _Type(gated=False, biases="all"),
    "gptj": _Type(gated=False, biases="all"),
    "opt": _Type(
        gated=False,
        tied=True,
        biases="all",
        positions=True,
        fields=("word_embed_proj_dim", "enable_bias"),
        rules=(_same_width,),
    ),
    "bloom": _Type(gated=False, tied=True, biases="all"),
    "starcoder2": _Type(gated=False, tied=True, biases="use_bias"),
    "olmo": _Type(),
    "olmo2": _Type(),
    "olmo3": _Type(),
    "olmoe": _LIKE_MIXTRAL,
    "glm4": _Type(),
    "glm4_moe": _Type(fields=_ROUTED, rules=(_routed_experts,)),
    "chatglm": _Type(
        fields=("multi_query_attention", "add_bias_linear", "add_qkv_bias"),
        biases="qkv",
        rules=(_chatglm,),
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "granite": _Type(),
    "granitemoe": _LIKE_MIXTRAL,
    "cohere": _Type(tied=True),
    "baichuan": _Type(),
    "mimo": _Type(biases="qkv", fields=_MTP_FIELDS, rules=(_predicts_ahead,)),
    "minimax_m2": _Type(
        fields=(*_SPARSE, *_MTP_FIELDS), rules=(_experts_of_all_layers, _predicts_ahead)
    ),
}
