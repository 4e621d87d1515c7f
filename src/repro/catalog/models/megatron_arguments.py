"""Decoders and parallel plans from Megatron's arguments, as scripts and logs have them.

Lines of `--num-layers 32`, NeMo's `model.num_layers=32` and `num_layers: 32`, and the list that
Megatron-LM prints when it starts are read alike. Every argument must be understood: it gives a
dimension or a part of the plan, or it changes neither sizes nor times.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from repro.catalog.models.hugging_face import ModelFile
from repro.catalog.models.ignored_fields import read_ignored
from repro.catalog.models.open_models import DecoderShape, model_called
from repro.errors import ReproError

_PRINTED = re.compile(r"(?:^|[\s\]>|])([a-z]\w*) \.{3,} ?(.*?)\s*$")
_ASSIGNED = re.compile(r"^[+~]*((?:[A-Za-z]\w*\.)*[A-Za-z]\w*)\s*[=:]\s*(.*?)\s*$")
_NUMBER = re.compile(r"-?\d+")
_VARIABLE = re.compile(r"\$\{?\w+")
# Arguments that give dimensions or the plan, by what other programs call them.
_ALIASES = {
    "encoder_seq_length": "seq_length",
    "context_length": "seq_length",
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "model_parallel_size": "tensor_model_parallel_size",
    "virtual_pipeline_model_parallel": "virtual_pipeline_model_parallel_size",
    "num_moe_experts": "num_experts",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "moe_router_top_k": "moe_router_topk",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "fp8": "fp8_format",
    "gated_linear_unit": "swiglu",
}
_UNDERSTOOD = frozenset(
    re.findall(
        r"\w+",
        """
        accumulate_allreduce_grads_in_fp32 activation activations_checkpoint_method
        add_bias_linear add_qkv_bias bf16 bias checkpoint_activations context_parallel_size
        data_parallel_sharding_strategy data_parallel_size disable_bias_linear
        expert_model_parallel_size expert_tensor_parallel_size ffn_hidden_size fp16 fp8_format
        global_batch_size grad_reduce_in_bf16 group_query_attention hidden_size kv_channels
        kv_lora_rank make_vocab_size_divisible_by max_position_embeddings mcore_gpt
        megatron_amp_o2 micro_batch_size moe_ffn_hidden_size moe_layer_freq moe_router_topk
        moe_shared_expert_intermediate_size mtp_num_layers multi_latent_attention
        no_position_embedding num_attention_heads num_experts num_layers
        num_layers_per_virtual_pipeline_stage num_query_groups overlap_grad_reduce
        overlap_param_gather padded_vocab_size pipeline_model_parallel_layout
        pipeline_model_parallel_size position_embedding_type precision q_lora_rank qk_head_dim
        qk_pos_emb_head_dim recipe recompute_activations recompute_granularity recompute_method
        recompute_modules recompute_num_layers seq_length sequence_parallel
        share_embeddings_and_output_weights swiglu tensor_model_parallel_size
        untie_embeddings_and_output_weights use_custom_fsdp use_distributed_optimizer
        use_megatron_fsdp use_torch_fsdp2 v_head_dim virtual_pipeline_model_parallel_size
        vocab_size window_size world_size
        """,
    )
)
# Arguments that would change sizes or times in a way that is not understood.
_REFUSED = (
    *("encoder_num_layers", "decoder_num_layers", "hybrid_override_pattern"),
    *("hybrid_attention_ratio", "is_hybrid_model", "heterogeneous_layers_config_path"),
    *("experimental_attention_variant", "linear_attention_freq", "moe_latent_size"),
)


@dataclass(frozen=True)
class Arguments:
    """Megatron's arguments.

    Attributes
    ----------
    model
        The decoder.
    plan
        Parts of the plan, by field of `repro.catalog.jobs.Job`.
    """

    model: ModelFile
    plan: Mapping[str, Any]


def read_arguments(text: str, vocabulary: int | None = None) -> Arguments:
    """Read a decoder and its plan.

    Parameters
    ----------
    vocabulary
        Tokens of the tokenizer, which arguments need not state.

    Raises
    ------
    ReproError
        An argument is not understood, has a wrong value, or is missing.
    """
    values, printed = _values(text)
    if not values:
        raise ReproError("no argument such as --num-layers 32; fix: give Megatron's arguments")
    if vocabulary is not None:
        values.setdefault("vocab_size", vocabulary)
    _refuse_unknown(values, printed)
    plan = _plan(values)
    return Arguments(_model(values, plan), plan)


def is_arguments(text: str) -> bool:
    """Return whether a text has arguments of a model."""
    values, _ = _values(text)
    return "num_layers" in values or "recipe" in values


def _values(text: str) -> tuple[dict[str, Any], bool]:
    """Return arguments by name, and whether Megatron-LM printed all of them."""
    printed = dict(
        (found[1], _value(found[2]))
        for line in text.splitlines()
        if (found := _PRINTED.search(line))
    )
    if len(printed) > 1:
        return _renamed(printed), True
    values: dict[str, Any] = {}
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if line.startswith("#") or not line:
            continue
        if "--" in line:
            values |= _options(line)
        elif found := _ASSIGNED.match(line):
            values[found[1].rsplit(".", 1)[-1]] = _value(found[2].strip("'\""))
    return _renamed(values), False


def _options(line: str) -> dict[str, Any]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ReproError(f"arguments {line[:40]!r}: {error}; fix: close the quote") from None
    values: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            values[name] = _value(value) if value else True
        elif found := _ASSIGNED.match(word):
            values[found[1].rsplit(".", 1)[-1]] = _value(found[2])
            name = ""
        elif name and values[name] is True:
            values[name] = _value(word)
    return values


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    plain = {name.replace("-", "_").lower(): value for name, value in values.items()}
    return {_ALIASES.get(name, name): value for name, value in plain.items() if value is not None}


def _value(text: str) -> Any:
    plain = {"true": True, "false": False, "none": None, "null": None, "": None}
    if text.lower() in plain:
        return plain[text.lower()]
    return int(text) if _NUMBER.fullmatch(text) else text


def _refuse_unknown(values: dict[str, Any], printed: bool) -> None:
    ignored = read_ignored().arguments
    for name, value in values.items():
        if name in _REFUSED and value:
            if name == "encoder_num_layers" and value == values.get("num_layers"):
                continue
            raise ReproError(f"argument {name} {value}: not understood; decoders only")
        if printed or name in _UNDERSTOOD or ignored.covers(name, value):
            if name in _UNDERSTOOD and isinstance(value, str) and _VARIABLE.search(value):
                raise ReproError(f"{name} is {value}, a variable; fix: write its value")
            continue
        if name not in _REFUSED:
            raise ReproError(
                f"argument {name} is not understood; understood: {', '.join(sorted(_UNDERSTOOD))}"
            )


def _count(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name, default)
    if value is None:
        raise ReproError(f"{name} is missing; fix: add --{name.replace('_', '-')} N")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ReproError(f"{name} is {value!r}; must be a whole number")
    return value


def _plan(values: dict[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = {}
    for name, argument in {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
        "vpp": "virtual_pipeline_model_parallel_size",
        "micro_batch": "micro_batch_size",
        "global_batch": "global_batch_size",
        "gpus": "world_size",
        "seq": "seq_length",
    }.items():
        if argument in values:
            plan[name] = _count(values, argument)
    if "num_layers_per_virtual_pipeline_stage" in values:
        each = _count(values, "num_layers_per_virtual_pipeline_stage")
        stages = plan.get("pp", 1) * each
        if not each or _count(values, "num_layers") % stages:
            raise ReproError(
                f"num_layers_per_virtual_pipeline_stage {each} does not divide the layers of a "
                "stage; fix: choose a divisor"
            )
        plan["vpp"] = _count(values, "num_layers") // stages
    recompute = _recompute(values)
    if recompute:
        plan["recompute"] = recompute
    if values.get("use_megatron_fsdp") or values.get("use_torch_fsdp2"):
        plan["zero"] = 3
    elif "use_distributed_optimizer" in values:
        plan["zero"] = 1 if values["use_distributed_optimizer"] else 0
    else:
        plan["zero"] = 0
    if values.get("fp8_format"):
        plan["precision"] = "mxfp8" if values.get("fp8_recipe") == "mxfp8" else "fp8"
    if values.get("grad_reduce_in_bf16"):
        plan["gradient_bytes"] = 2
    return plan


def _recompute(values: dict[str, Any]) -> str:
    granularity = values.get("recompute_granularity")
    if granularity in ("full", "selective"):
        return str(granularity)
    if granularity:
        raise ReproError(f"recompute_granularity {granularity!r}; choose from: full, selective")
    if values.get("recompute_activations"):
        return "selective"
    if values.get("activations_checkpoint_method") or values.get("checkpoint_activations"):
        return "full"
    return ""


def _model(values: dict[str, Any], plan: dict[str, Any]) -> ModelFile:
    if "num_layers" not in values and isinstance(values.get("recipe"), str):
        entry = model_called(values["recipe"])
        note = f"model of the recipe {values['recipe']}"
        return ModelFile(entry.label, entry.shape, (note,))
    notes: list[str] = []
    hidden, heads = _count(values, "hidden_size"), _count(values, "num_attention_heads")
    if not heads or not hidden:
        raise ReproError("hidden_size and num_attention_heads must be 1 or more")
    gated = bool(values.get("swiglu")) or "swiglu" in str(values.get("activation", ""))
    ffn = values.get("ffn_hidden_size") or (
        int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    )
    layers = _count(values, "num_layers")
    shape: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "ffn": ffn,
        "heads": heads,
        "kv_heads": _groups(values, heads),
        "head_dim": _count(values, "kv_channels", hidden // heads),
        "gated_mlp": gated,
        "seq": _count(values, "seq_length"),
        "vocab": _vocabulary(values, plan, notes),
        "tied": _tied(values),
        "biases": _biases(values),
        "mtp_layers": _count(values, "mtp_num_layers", 0),
        **_latent_attention(values, heads),
        **_experts(values, layers, ffn),
        **_window(values),
    }
    learned = values.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    if learned and not values.get("no_position_embedding"):
        shape["positions"] = _count(values, "max_position_embeddings", shape["seq"])
    try:
        return ModelFile("model of the arguments", DecoderShape(**shape), tuple(notes))
    except ValidationError as error:
        first = error.errors()[0]
        raise ReproError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _groups(values: dict[str, Any], heads: int) -> int:
    """Return heads of keys and values; Megatron-LM's option needs the switch beside it."""
    groups = _count(values, "num_query_groups", heads)
    if values.get("group_query_attention") is False or not groups:
        return heads
    return groups


def _tied(values: dict[str, Any]) -> bool:
    if "share_embeddings_and_output_weights" in values:
        return bool(values["share_embeddings_and_output_weights"])
    return not values.get("untie_embeddings_and_output_weights", False)


def _biases(values: dict[str, Any]) -> str:
    stated = values.get("add_bias_linear", values.get("bias"))
    without = values.get("disable_bias_linear") if stated is None else not stated
    if not without:
        return "all"
    return "qkv" if values.get("add_qkv_bias") else "none"


def _vocabulary(values: dict[str, Any], plan: dict[str, Any], notes: list[str]) -> int:
    """Return the rows of the table, which Megatron pads to multiples for tensor parallelism."""
    if values.get("padded_vocab_size"):
        return _count(values, "padded_vocab_size")
    if values.get("vocab_size") is None:
        raise ReproError("vocab_size is missing, as the tokenizer has it; fix: add --vocab-size N")
    size = _count(values, "vocab_size")
    multiple = max(_count(values, "make_vocab_size_divisible_by", 128), 1) * max(
        plan.get("tp", 1), 1
    )
    padded: int = -(-size // multiple) * multiple
    if padded != size:
        notes.append(f"vocabulary of {size} padded to {padded}, a multiple of {multiple}")
    return padded


def _latent_attention(values: dict[str, Any], heads: int) -> dict[str, Any]:
    if not values.get("multi_latent_attention"):
        return {}
    rope = _count(values, "qk_pos_emb_head_dim", 64)
    return {
        "kv_heads": heads,
        "head_dim": _count(values, "qk_head_dim", 128) + rope,
        "value_dim": _count(values, "v_head_dim", 128),
        "kv_rank": _count(values, "kv_lora_rank", 512),
        "query_rank": _count(values, "q_lora_rank", 0),
        "rope_dim": rope,
    }


def _experts(values: dict[str, Any], layers: int, ffn: int) -> dict[str, Any]:
    experts = _count(values, "num_experts", 0)
    if not experts:
        return {}
    dense = layers - sum(_mixed_layers(values.get("moe_layer_freq", 1), layers))
    return {
        "ffn": 0,
        "experts": experts,
        "experts_per_token": _count(values, "moe_router_topk", 2),
        "expert_ffn": values.get("moe_ffn_hidden_size") or ffn,
        "shared_expert_ffn": _count(values, "moe_shared_expert_intermediate_size", 0),
        "dense_layers": dense,
        "dense_ffn": ffn if dense else 0,
    }


def _mixed_layers(given: Any, layers: int) -> list[int]:
    """Read which layers are mixtures: every N-th, or a sum of lists such as `[0]*3+[1]*58`."""
    if isinstance(given, int) and given >= 1:
        return [int(one % given == 0) for one in range(layers)]
    text = str(given).replace(" ", "")
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    pattern: list[int] = []
    for part in re.split(r"\+(?![^\[]*\])", text):
        found = re.fullmatch(r"\(*\[([01](?:,[01])*)\](?:\*(\d{1,4}))?\)*", part)
        if not found:
            raise ReproError(f"moe_layer_freq {given!r}: not understood; write [0]*3+[1]*58 or N")
        pattern += [int(one) for one in found[1].split(",")] * int(found[2] or 1)
    if len(pattern) != layers:
        raise ReproError(f"moe_layer_freq has {len(pattern)} layers, num_layers is {layers}")
    return pattern


def _window(values: dict[str, Any]) -> dict[str, Any]:
    stated = values.get("window_size")
    if not stated:
        return {}
    found = re.findall(r"-?\d+", str(stated))
    if not found or int(found[0]) < 0:
        return {}
    return {"window": int(found[0]), "windowed": 1.0}
