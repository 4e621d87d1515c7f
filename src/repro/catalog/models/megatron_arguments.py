"""Decoders and parallel plans from Megatron's arguments, as scripts and logs have them.

Lines of `--num-layers 32`, NeMo's `model.num_layers=32` and `num_layers: 32`, and the list that
Megatron-LM prints when it starts are read alike. Every argument must be understood: it gives a
dimension or a part of the plan, or it changes neither sizes nor times.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from repro.catalog.models.argument_values import (
    ArgumentValues,
    count_chunks,
    layer_pattern,
    read_values,
)
from repro.catalog.models.decoder_rules import MOST, MOST_LAYERS
from repro.catalog.models.hugging_face import ModelFile
from repro.catalog.models.ignored_fields import read_ignored
from repro.catalog.models.open_models import DecoderShape, OpenModel, plain_name, read_open_models
from repro.catalog.reading import choose
from repro.errors import ReproError

# Ends of names of recipes that do not change the model, without marks.
_OF_RECIPE = re.compile(r"(?:pretrain|config|recipe|finetune|sft|mock|\d+nodes|\d+k|bf16|fp8)*")
_VARIABLE = re.compile(r"\$\{?\w+")
_UNDERSTOOD = frozenset(
    re.findall(
        r"\w+",
        """
        accumulate_allreduce_grads_in_fp32 activation activations_checkpoint_method
        add_bias_linear add_qkv_bias bf16 bias checkpoint_activations context_parallel_size
        data_parallel_sharding_strategy data_parallel_size disable_bias_linear
        expert_model_parallel_size expert_tensor_parallel_size ffn_hidden_size fp16 fp8_format
        fp4_format global_batch_size grad_reduce_in_bf16 group_query_attention hidden_size
        add_position_embedding kv_channels
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
        vocab_size window_attn_skip_freq window_size world_size megatron_fsdp_grad_comm_dtype
        megatron_fsdp_main_grads_dtype
        """,
    )
)
# Arguments that a recipe already has.
_DIMENSIONS = ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
# Arguments of which only some values are understood.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "optimizer": ("adam", "adamw", "fused_adam", "distributed_fused_adam"),
    "num_distributed_optimizer_instances": (1,),
    "outer_dp_sharding_strategy": ("no_shard",),
    "exp_avg_dtype": ("fp32", "torch.float32"),
    "exp_avg_sq_dtype": ("fp32", "torch.float32"),
    "main_grads_dtype": ("fp32", "torch.float32"),
    "main_params_dtype": ("fp32", "torch.float32"),
}
_SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


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
        Tokens of the tokenizer, which arguments need not state; replaces what they state.

    Raises
    ------
    ReproError
        An argument is not understood, has a wrong value, or is missing.
    """
    given = read_values(text)
    values = given.values
    if not values:
        raise ReproError("no argument such as --num-layers 32; fix: give Megatron's arguments")
    if vocabulary is not None:
        values["vocab_size"] = vocabulary
        values.pop("padded_vocab_size", None)
    _refuse_unknown(given)
    plan = _plan(values)
    model = _model(given, plan)
    return Arguments(replace(model, notes=(*model.notes, *_reported(values, plan))), plan)


def is_arguments(text: str) -> bool:
    """Return whether a text has arguments of a model."""
    values = read_values(text).values
    return not values.keys().isdisjoint(("num_layers", "encoder_num_layers", "recipe"))


def _refuse_unknown(given: ArgumentValues) -> None:
    ignored, values = read_ignored().arguments, given.values
    for name, value in values.items():
        if name == "encoder_num_layers" and value == values.get("num_layers"):
            # Megatron-LM prints a decoder's layers by this name too.
            continue
        if name in _ONLY and value not in _ONLY[name]:
            allowed = ", ".join(map(str, _ONLY[name]))
            raise ReproError(f"argument {name} is {value!r:.40}; understood: {allowed}")
        if name in ignored.switched_off and value:
            raise ReproError(f"argument {name} {value!r:.40}: not understood; decoders only")
        if name in _UNDERSTOOD and isinstance(value, str) and _VARIABLE.search(value):
            raise ReproError(f"{name} is {value:.40}, a variable; fix: write its value")
        known = name in _UNDERSTOOD or name in _ONLY or ignored.covers(name, value)
        if given.style != "printed" and not known:
            raise ReproError(
                f"argument {name:.40} is not understood; understood: "
                f"{', '.join(sorted(_UNDERSTOOD))}"
            )


def _reported(values: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    """Name the arguments that the performance model does not know."""
    known = {"recompute_modules": ("core_attn", "['core_attn']")}
    reported = sorted(
        name
        for name in read_ignored().arguments.reported
        if values.get(name) and values[name] not in known.get(name, ())
    )
    if plan.get("tp", 1) > 1 and not values.get("sequence_parallel"):
        reported.append("tensor parallelism without sequence_parallel")
    if values.get("recompute_method") == "block":
        reported.append("recompute_method block (all layers are taken to be recomputed)")
    return [f"not in the performance model: {name}" for name in reported]


def _count(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name, default)
    if value is None:
        raise ReproError(f"{name} is missing; fix: add --{name.replace('_', '-')} N")
    most = MOST_LAYERS if name == "num_layers" else MOST
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ReproError(f"{name} is {value!r:.40}; must be a whole number up to {most}")
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
            if not plan[name]:
                raise ReproError(f"{argument} is 0; must be 1 or more")
    if "num_layers_per_virtual_pipeline_stage" in values:
        each = _count(values, "num_layers_per_virtual_pipeline_stage")
        stages = plan.get("pp", 1) * each
        if not each or _count(values, "num_layers") % stages:
            raise ReproError(
                f"num_layers_per_virtual_pipeline_stage {each} does not divide the layers of a "
                "stage; fix: choose a divisor"
            )
        plan["vpp"] = _count(values, "num_layers") // stages
    if "pipeline_model_parallel_layout" in values:
        chunks, stages = (
            count_chunks(str(values["pipeline_model_parallel_layout"])),
            plan.get("pp", 1),
        )
        if chunks % stages:
            raise ReproError(f"pipeline_model_parallel_layout: {chunks} chunks, {stages} stages")
        plan["vpp"] = chunks // stages
    nodes, per_node = values.get("nnodes"), values.get("nproc_per_node")
    if "gpus" not in plan and isinstance(nodes, int) and isinstance(per_node, int):
        plan["gpus"] = nodes * per_node
    recompute = _recompute(values)
    if recompute:
        plan["recompute"] = recompute
    plan["zero"] = _zero(values)
    if values.get("fp8_format"):
        plan["precision"] = "mxfp8" if values.get("fp8_recipe") == "mxfp8" else "fp8"
    if values.get("fp4_format"):
        plan["precision"] = "nvfp4"
    if values.get("grad_reduce_in_bf16") or values.get("megatron_fsdp_main_grads_dtype") == "bf16":
        plan["gradient_bytes"] = 2
    return plan


def _zero(values: Mapping[str, Any]) -> int:
    """Return what replicas divide: by Megatron's own sharding, PyTorch's, or the optimizer."""
    if values.get("use_megatron_fsdp") or values.get("use_custom_fsdp"):
        strategy = values.get("data_parallel_sharding_strategy", "no_shard")
        return choose("data_parallel_sharding_strategy", str(strategy), _SHARDED)
    if values.get("use_torch_fsdp2"):
        return 3
    return 1 if values.get("use_distributed_optimizer") else 0


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


def _model(given: ArgumentValues, plan: dict[str, Any]) -> ModelFile:
    values = given.values
    if "num_layers" not in values and isinstance(values.get("recipe"), str):
        changed = [name for name in _DIMENSIONS if name in values]
        if changed:
            raise ReproError(f"{changed[0]} beside a recipe: not understood; fix: give all sizes")
        entry = _model_of_recipe(values["recipe"])
        note = f"model of the recipe {values['recipe']}"
        return ModelFile(entry.label, entry.shape, (note,))
    notes: list[str] = []
    hidden, heads = _count(values, "hidden_size"), _count(values, "num_attention_heads")
    if not heads or not hidden:
        raise ReproError("hidden_size and num_attention_heads must be 1 or more")
    if hidden % heads and "kv_channels" not in values:
        raise ReproError(
            f"hidden_size {hidden}: no multiple of {heads} heads; fix: add kv_channels"
        )
    gated = bool(values.get("swiglu")) or "swiglu" in str(values.get("activation", ""))
    default = int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden
    ffn = _count(values, "ffn_hidden_size", default)
    layers = _count(values, "num_layers")
    shape: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "ffn": ffn,
        "heads": heads,
        "kv_heads": _groups(given, heads),
        "head_dim": _count(values, "kv_channels", hidden // heads),
        "gated_mlp": gated,
        "seq": _count(values, "seq_length"),
        "vocab": _vocabulary(values, plan, notes),
        "tied": _tied(values),
        "biases": _biases(values),
        "mtp_layers": _count(values, "mtp_num_layers", 0),
        **_latent_attention(values, heads),
        **_experts(values, layers, ffn),
        **_window(values, layers),
    }
    learned = values.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    added = values.get("add_position_embedding", True) and not values.get("no_position_embedding")
    if learned and added:
        shape["positions"] = _count(values, "max_position_embeddings", shape["seq"])
    try:
        return ModelFile("model of the arguments", DecoderShape(**shape), tuple(notes))
    except ValidationError as error:
        first = error.errors()[0]
        raise ReproError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _model_of_recipe(recipe: str) -> OpenModel:
    """Return the model whose name a recipe begins with; the rest must not change it."""
    known, plain = read_open_models(), plain_name(recipe)
    for key, entry in known.items():
        for name in map(plain_name, (key, entry.label, *entry.published_as)):
            if plain.startswith(name) and _OF_RECIPE.fullmatch(plain[len(name) :]):
                return entry
    raise ReproError(f"recipe {recipe!r:.60} is of no model of: {', '.join(known)}")


def _groups(given: ArgumentValues, heads: int) -> int:
    """Return heads of keys and values; Megatron-LM's option needs the switch beside it."""
    values = given.values
    switched = values.get("group_query_attention")
    groups = _count(values, "num_query_groups", 1 if switched else heads)
    if switched is None and given.style == "options" and groups not in (1, heads):
        raise ReproError(
            f"num_query_groups {groups} without group_query_attention, which Megatron-LM ignores; "
            "fix: add --group-query-attention"
        )
    if switched is False or (switched is None and given.style == "options") or not groups:
        return heads
    if heads % groups:
        raise ReproError(f"num_query_groups {groups} does not divide {heads} heads")
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
        "kv_rank": _count(values, "kv_lora_rank"),
        "query_rank": _count(values, "q_lora_rank", 0),
        "rope_dim": rope,
    }


def _experts(values: dict[str, Any], layers: int, ffn: int) -> dict[str, Any]:
    experts = _count(values, "num_experts", 0)
    if not experts:
        return {}
    dense = layers - sum(layer_pattern(values, "moe_layer_freq", layers))
    return {
        "ffn": 0,
        "experts": experts,
        "experts_per_token": _count(values, "moe_router_topk", 2),
        "expert_ffn": _count(values, "moe_ffn_hidden_size", ffn),
        "shared_expert_ffn": _count(values, "moe_shared_expert_intermediate_size", 0),
        "dense_layers": dense,
        "dense_ffn": ffn if dense else 0,
    }


def _window(values: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return the window, such as `(128,0)`; each N-th layer, or 0 in a list, attends to all."""
    stated = values.get("window_size")
    if not stated:
        return {}
    found = re.fullmatch(r"[(\[]?(-?\d{1,9})(?:,-?\d{1,9})?[)\]]?", str(stated).replace(" ", ""))
    if not found:
        raise ReproError(f"window_size {stated!r:.40}: not understood; write 128,0")
    if int(found[1]) < 0:
        return {}
    skipped = values.get("window_attn_skip_freq")
    if skipped is None:
        share = 1.0
    elif isinstance(skipped, int):
        # Layers count from 1 here.
        share = 1 - layers // max(_count(values, "window_attn_skip_freq"), 1) / layers
    else:
        share = sum(layer_pattern(values, "window_attn_skip_freq", layers)) / layers
    return {"window": int(found[1]), "windowed": share} if share else {}
