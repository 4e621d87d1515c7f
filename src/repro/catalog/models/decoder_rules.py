"""Rules that give dimensions of a decoder from the fields of its type's `config.json`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repro.errors import ReproError

Fields = Mapping[str, Any]
Shape = dict[str, Any]
Biases = Literal["none", "qkv", "all"]

# Sizes beyond these are typing errors.
MOST = 10**9
MOST_LAYERS = 10**4
_QKV: Mapping[str, Biases] = {"attention_bias": "qkv"}


@dataclass(frozen=True)
class DecoderType:
    """Rules of a `model_type`.

    Attributes
    ----------
    gated
        Whether an MLP has three matrices.
    tied
        Whether tables are shared where the file does not say so.
    biases, bias_fields
        Linear layers with biases, and fields that change this where the file has one of them.
    defaults
        Dimensions where a file leaves them out, by field of `DecoderShape`.
    four_times
        Whether an MLP is four times as wide as the hidden state where the file does not say so.
    window
        Layers with a window: none, all, `later` (from `max_window_layers` on, if it is used at
        all), or all but each N-th.
    fields
        Further fields that it has, which `rules` read.
    rules
        Further dimensions, of the file and the common ones.
    positions
        Whether it has a table of learned positions.
    """

    gated: bool = True
    tied: bool = False
    biases: Biases = "none"
    bias_fields: Mapping[str, Biases] = field(default_factory=lambda: _QKV)
    defaults: Mapping[str, int] = field(default_factory=dict)
    four_times: bool = False
    window: int | Literal["none", "all", "later"] = "none"
    fields: tuple[str, ...] = ()
    rules: tuple[Callable[[Fields, Shape], Shape], ...] = ()
    positions: bool = False


def integer(given: Fields, name: str, default: int | None = None) -> int:
    """Return a whole number of a file, 0 or more.

    Raises
    ------
    ReproError
        It is missing without a default, or it is no such number.
    """
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ReproError(f"{name} is {value!r:.40}; must be a whole number up to {MOST:.0e}")
    return value


def _only(given: Fields, name: str, *allowed: Any) -> None:
    """Refuse a field with another value than those that are understood."""
    if name in given and given[name] not in allowed:
        raise ReproError(
            f"{name} is {given[name]!r:.40}; understood: {', '.join(map(repr, allowed))}"
        )


def _either(given: Fields, *names: str) -> int:
    """Return the whole number of the first of several fields that a file has."""
    found = next((one for one in names if given.get(one) is not None), names[0])
    return integer(given, found)


def _part(given: Fields, name: str, understood: tuple[str, ...]) -> Fields:
    """Return a group of fields, none of which is unknown."""
    group = given.get(name) or {}
    if not isinstance(group, dict):
        raise ReproError(f"{name} is {group!r:.40}; must be fields")
    unknown = [one for one in group if one not in understood and group[one]]
    if unknown:
        raise ReproError(f"field {name}.{unknown[0]} is not understood")
    return group


def _mixture(given: Fields, shape: Shape, *, experts: int, shared: int, dense_layers: int) -> Shape:
    """Return experts of `moe_intermediate_size`, beside MLPs of the common width."""
    return {
        "ffn": 0,
        "experts": experts,
        "experts_per_token": _either(given, "num_experts_per_tok", "moe_k"),
        "expert_ffn": integer(given, "moe_intermediate_size"),
        "shared_expert_ffn": shared,
        "dense_layers": dense_layers,
        "dense_ffn": shape["ffn"] if dense_layers else 0,
        "mtp_layers": integer(given, "num_nextn_predict_layers", 0),
    }


def experts_of_all_layers(given: Fields, shape: Shape) -> Shape:
    """Return the experts of Mixtral and types like it, which are as wide as `intermediate_size`."""
    return {
        "ffn": 0,
        "experts": _either(given, "num_local_experts", "num_experts"),
        "experts_per_token": _either(given, "num_experts_per_tok", "experts_per_token"),
        "expert_ffn": shape["ffn"],
        "shared_expert_ffn": integer(given, "shared_intermediate_size", 0),
    }


def sinks(given: Fields, shape: Shape) -> Shape:
    """Return that heads have sinks, which no field says."""
    return {"sinks": True}


def qwen_experts(given: Fields, shape: Shape) -> Shape:
    """Return Qwen's experts, in each N-th layer that is not listed as dense."""
    layers, step = shape["layers"], integer(given, "decoder_sparse_step", 1)
    dense = given.get("mlp_only_layers") or []
    if not isinstance(dense, list) or step < 1:
        raise ReproError(
            f"mlp_only_layers {dense!r:.40}, decoder_sparse_step {step}: not understood"
        )
    mixed = [one for one in range(layers) if one not in dense and (one + 1) % step == 0]
    return _mixture(
        given,
        shape,
        experts=integer(given, "num_experts"),
        shared=0,
        dense_layers=layers - len(mixed),
    )


def qwen2_experts(given: Fields, shape: Shape) -> Shape:
    """Return the experts of Qwen2, which has a shared one of its own width."""
    shared = integer(given, "shared_expert_intermediate_size")
    return qwen_experts(given, shape) | {"shared_expert_ffn": shared}


def routed_experts(given: Fields, shape: Shape) -> Shape:
    """Return the experts of DeepSeek and types like it, whose first layers are dense."""
    layers, first = shape["layers"], integer(given, "first_k_dense_replace")
    every = integer(given, "moe_layer_freq", 1)
    if every < 1:
        raise ReproError(f"moe_layer_freq is {every}; must be 1 or more")
    mixed = sum(1 for one in range(layers) if one >= first and one % every == 0)
    shared = 0 if given.get("n_shared_experts", 0) is None else integer(given, "n_shared_experts")
    return _mixture(
        given,
        shape,
        experts=integer(given, "n_routed_experts"),
        shared=integer(given, "moe_intermediate_size") * shared,
        dense_layers=layers - mixed,
    )


def ernie_experts(given: Fields, shape: Shape) -> Shape:
    """Return ERNIE's experts, in each N-th layer of a range."""
    layers, step = shape["layers"], integer(given, "moe_layer_interval", 1)
    first, last = integer(given, "moe_layer_start_index", 1), given.get("moe_layer_end_index", -1)
    last = (
        layers - 1 if last == -1 else integer({"moe_layer_end_index": last}, "moe_layer_end_index")
    )
    if step < 1:
        raise ReproError(f"moe_layer_interval is {step}; must be 1 or more")
    mixed = sum(1 for one in range(layers) if first <= one <= last and (one + 1) % step == 0)
    shared = integer(given, "moe_num_shared_experts", 2)
    return _mixture(
        given,
        shape,
        experts=integer(given, "moe_num_experts"),
        shared=integer(given, "moe_intermediate_size") * shared,
        dense_layers=layers - mixed,
    )


def latent_attention(given: Fields, shape: Shape) -> Shape:
    """Return the widths of DeepSeek's attention, whose keys and values are compressed."""
    rope = integer(given, "qk_rope_head_dim")
    return {
        "kv_heads": shape["heads"],
        "head_dim": integer(given, "qk_nope_head_dim") + rope,
        "value_dim": integer(given, "v_head_dim"),
        "kv_rank": integer(given, "kv_lora_rank"),
        "query_rank": integer(given, "q_lora_rank") if given.get("q_lora_rank") else 0,
        "rope_dim": rope,
    }


def llama4(given: Fields, shape: Shape) -> Shape:
    """Return Llama 4's experts, in each N-th layer, and its chunks in layers with rotations."""
    layers, step = shape["layers"], integer(given, "interleave_moe_layer_step", 1)
    mixed, interval = given.get("moe_layers"), integer(given, "no_rope_layer_interval", 4)
    if step < 1 or interval < 1:
        raise ReproError("interleave_moe_layer_step and no_rope_layer_interval must be 1 or more")
    if mixed is None:
        mixed = range(step - 1, layers, step)
    chunked = given.get("no_rope_layers") or [(one + 1) % interval != 0 for one in range(layers)]
    if given.get("layer_types"):
        chunked = [one != "full_attention" for one in given["layer_types"]]
    if not isinstance(mixed, list | range) or not set(mixed) <= set(range(layers)):
        raise ReproError(f"moe_layers {mixed!r:.40}; must list some of {layers} layers")
    if not isinstance(chunked, list) or len(chunked) != layers:
        raise ReproError(f"no_rope_layers {chunked!r:.40}; must list {layers} layers")
    dense = layers - len(set(mixed))
    size = given.get("attention_chunk_size", 8192)
    return {
        "ffn": 0,
        "experts": integer(given, "num_local_experts"),
        "experts_per_token": integer(given, "num_experts_per_tok", 1),
        "expert_ffn": shape["ffn"],
        "shared_expert_ffn": shape["ffn"],
        "dense_layers": dense,
        "dense_ffn": integer(given, "intermediate_size_mlp") if dense else 0,
        "window": 0 if size is None else integer(given, "attention_chunk_size", 8192),
        "windowed": sum(map(bool, chunked)) / layers,
    }


def dbrx(given: Fields, shape: Shape) -> Shape:
    """Return DBRX's experts and heads, which are groups of fields."""
    attention = _part(given, "attn_config", ("clip_qkv", "kv_n_heads", "rope_theta", "model_type"))
    names = ("ffn_hidden_size", "moe_num_experts", "moe_top_k", "moe_jitter_eps")
    more = ("moe_loss_weight", "moe_normalize_expert_weights", "ffn_act_fn", "model_type")
    experts = _part(given, "ffn_config", (*names, *more, "uniform_expert_assignment"))
    return {
        "kv_heads": integer(attention, "kv_n_heads", 1),
        "ffn": 0,
        "experts": integer(experts, "moe_num_experts"),
        "experts_per_token": integer(experts, "moe_top_k"),
        "expert_ffn": integer(experts, "ffn_hidden_size"),
    }


def mpt(given: Fields, shape: Shape) -> Shape:
    """Return MPT's biases; only its usual attention is understood."""
    names = ("attn_type", "alibi", "alibi_bias_max", "attn_impl", "attn_pdrop", "clip_qkv")
    more = ("softmax_scale", "model_type", "rope", "rope_theta", "sliding_window_size")
    attention = _part(given, "attn_config", (*names, *more))
    _only(attention, "attn_type", "multihead_attention")
    _only(attention, "alibi", True)
    for name in ("rope", "sliding_window_size"):
        _only(attention, name, False, None, -1)
    _only(given, "expansion_ratio", 4)
    return {"biases": "none" if given.get("no_bias", True) else "all"}


def falcon(given: Fields, shape: Shape) -> Shape:
    """Return one head of keys and values, except in Falcon's second architecture."""
    return {} if given.get("new_decoder_architecture") else multi_query(given, shape)


def multi_query(given: Fields, shape: Shape) -> Shape:
    """Return one head of keys and values, or as many as of queries."""
    return {"kv_heads": 1 if given.get("multi_query", True) else shape["heads"]}


def chatglm(given: Fields, shape: Shape) -> Shape:
    """Return the heads of ChatGLM's keys and values."""
    _only(given, "add_bias_linear", False)
    return {"kv_heads": shape["kv_heads"] if given.get("multi_query_attention") else shape["heads"]}


def halved_mlp(given: Fields, shape: Shape) -> Shape:
    """Return the MLP of the first Qwen, whose file states the width of two matrices together."""
    _only(given, "no_bias", True)
    return {"ffn": shape["ffn"] // 2}


def same_width(given: Fields, shape: Shape) -> Shape:
    """Refuse embeddings of another width than the layers."""
    if given.get("word_embed_proj_dim", shape["hidden"]) != shape["hidden"]:
        raise ReproError("word_embed_proj_dim is not hidden_size, which is not understood")
    return {}


def predicts_ahead(given: Fields, shape: Shape) -> Shape:
    """Return the layers that predict further tokens, if they are used."""
    used = given.get("use_mtp", True)
    name = "num_mtp_modules" if "num_mtp_modules" in given else "num_nextn_predict_layers"
    return {"mtp_layers": integer(given, name, 0) if used else 0}
