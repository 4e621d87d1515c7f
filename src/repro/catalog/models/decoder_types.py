"""Rules by `model_type` of a `config.json`: defaults, further fields, and the dimensions they give.

They follow the classes of transformers 4.57, and, for types outside of it, those that come with the
models' files. A type is listed only if all fields that change its sizes are understood.
"""

from collections.abc import Mapping

from repro.catalog.models.decoder_rules import (
    Biases,
    DecoderType,
    chatglm,
    dbrx,
    ernie_experts,
    experts_of_all_layers,
    falcon,
    halved_mlp,
    latent_attention,
    llama4,
    mpt,
    multi_query,
    predicts_ahead,
    qwen2_experts,
    qwen_experts,
    routed_experts,
    same_width,
    sinks,
)

_QKV_OR_ALL: Mapping[str, Biases] = {"attention_bias": "qkv", "mlp_bias": "all"}
_SPARSE = (
    *("num_local_experts", "num_experts", "num_experts_per_tok", "experts_per_token"),
    *("shared_intermediate_size", "moe_intermediate_size"),
)
_ROUTED = (
    *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("first_k_dense_replace", "moe_layer_freq", "num_nextn_predict_layers"),
)
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENT_MIXTURE = DecoderType(
    # Keys of a head consist of two stated parts; `head_dim` and `qk_head_dim` repeat one or both.
    fields=(*_ROUTED, *_LATENT, "qk_head_dim"),
    bias_fields={},
    rules=(routed_experts, latent_attention),
)
_QWEN_MOE = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step")
_PREDICTS = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_transformer_layers", "use_mtp")
_LIKE_MIXTRAL = DecoderType(fields=_SPARSE, rules=(experts_of_all_layers,))
_LLAMA = DecoderType(bias_fields=_QKV_OR_ALL)
_GEMMA = {"head_dim": 256, "kv_heads": 4, "window": 4096}
_QWEN2 = DecoderType(biases="qkv", window="later", defaults={"kv_heads": 32})
_QWEN3 = DecoderType(window="later", defaults={"head_dim": 128, "kv_heads": 32})
_GLM4 = {"head_dim": 128, "kv_heads": 2}
_ALL_BIASED = DecoderType(gated=False, biases="all", bias_fields={}, four_times=True)
DECODER_TYPES: Mapping[str, DecoderType] = {
    "llama": _LLAMA,
    "mistral": DecoderType(window="all", defaults={"kv_heads": 8, "window": 4096}),
    "ministral": DecoderType(window="all", defaults={"kv_heads": 8, "window": 4096}),
    "mixtral": DecoderType(
        window="all", defaults={"kv_heads": 8}, fields=_SPARSE, rules=(experts_of_all_layers,)
    ),
    "qwen": DecoderType(biases="qkv", bias_fields={}, fields=("no_bias",), rules=(halved_mlp,)),
    "qwen2": _QWEN2,
    "qwen2_vl": DecoderType(biases="qkv", window="later", defaults={"kv_heads": 8}),
    "qwen2_5_vl": DecoderType(biases="qkv", window="later", defaults={"kv_heads": 8}),
    "qwen2_moe": DecoderType(
        biases="qkv",
        window="later",
        defaults={"kv_heads": 16},
        bias_fields={"qkv_bias": "qkv"},
        fields=(*_QWEN_MOE, "shared_expert_intermediate_size", "mlp_only_layers"),
        rules=(qwen2_experts,),
    ),
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_moe": DecoderType(
        window="later",
        defaults={"kv_heads": 4},
        fields=(*_QWEN_MOE, "mlp_only_layers"),
        rules=(qwen_experts,),
    ),
    "qwen3_vl_moe": DecoderType(
        defaults={"kv_heads": 16},
        fields=(*_QWEN_MOE, "mlp_only_layers"),
        rules=(qwen_experts,),
    ),
    "deepseek": DecoderType(fields=_ROUTED, rules=(routed_experts,)),
    "deepseek_v2": _LATENT_MIXTURE,
    "deepseek_v3": _LATENT_MIXTURE,
    "kimi_k2": _LATENT_MIXTURE,
    "dots1": DecoderType(
        window="later", defaults={"window": 4096}, fields=_ROUTED, rules=(routed_experts,)
    ),
    "gpt_oss": DecoderType(
        biases="all",
        bias_fields={"attention_bias": "all"},
        window=2,
        defaults={"head_dim": 64, "kv_heads": 8, "window": 128},
        fields=_SPARSE,
        rules=(experts_of_all_layers, sinks),
    ),
    "gemma": DecoderType(tied=True, defaults={"head_dim": 256, "kv_heads": 16}),
    "gemma2": DecoderType(tied=True, window=2, defaults=_GEMMA),
    "gemma3": DecoderType(
        tied=True,
        window=6,
        # The part for text of files with images leaves out what is the same in the smallest model.
        defaults=_GEMMA | {"layers": 26, "hidden": 2304, "heads": 8, "ffn": 9216, "vocab": 262208},
    ),
    "phi": DecoderType(gated=False, biases="all", bias_fields={}),
    "phi3": DecoderType(window="all"),
    "phimoe": DecoderType(
        window="all",
        defaults={"kv_heads": 8},
        fields=_SPARSE,
        rules=(experts_of_all_layers,),
    ),
    "falcon": DecoderType(
        gated=False,
        tied=True,
        bias_fields={"bias": "all"},
        four_times=True,
        fields=("multi_query", "new_decoder_architecture"),
        rules=(falcon,),
    ),
    "gpt2": DecoderType(
        gated=False, tied=True, biases="all", bias_fields={}, four_times=True, positions=True
    ),
    "gpt_bigcode": DecoderType(
        gated=False,
        tied=True,
        biases="all",
        bias_fields={},
        four_times=True,
        positions=True,
        fields=("multi_query",),
        rules=(multi_query,),
    ),
    "gpt_neox": DecoderType(gated=False, biases="all", bias_fields={"attention_bias": "all"}),
    "gptj": _ALL_BIASED,
    "opt": DecoderType(
        gated=False,
        tied=True,
        biases="all",
        bias_fields={"enable_bias": "all"},
        positions=True,
        fields=("word_embed_proj_dim",),
        rules=(same_width,),
    ),
    "bloom": DecoderType(gated=False, tied=True, biases="all", bias_fields={}, four_times=True),
    "mpt": DecoderType(
        gated=False,
        tied=True,
        four_times=True,
        fields=("attn_config", "expansion_ratio", "no_bias"),
        rules=(mpt,),
    ),
    "dbrx": DecoderType(four_times=True, fields=("attn_config", "ffn_config"), rules=(dbrx,)),
    "starcoder2": DecoderType(
        gated=False,
        tied=True,
        biases="all",
        bias_fields={"use_bias": "all"},
        window="all",
        defaults={"kv_heads": 2},
    ),
    "stablelm": DecoderType(bias_fields={"use_qkv_bias": "qkv"}, defaults={"kv_heads": 32}),
    "nemotron": DecoderType(gated=False, bias_fields=_QKV_OR_ALL),
    "arcee": DecoderType(gated=False, bias_fields=_QKV_OR_ALL),
    "apertus": DecoderType(gated=False),
    "olmo": DecoderType(),
    "olmo2": DecoderType(),
    "olmo3": DecoderType(window=4, defaults={"window": 4096}),
    "olmoe": _LIKE_MIXTRAL,
    "flex_olmo": _LIKE_MIXTRAL,
    "glm": DecoderType(biases="qkv", defaults=_GLM4),
    "glm4": DecoderType(biases="qkv", defaults=_GLM4),
    "glm4v": DecoderType(biases="qkv", bias_fields={}, defaults={"kv_heads": 2}),
    "glm4_moe": DecoderType(defaults={"kv_heads": 8}, fields=_ROUTED, rules=(routed_experts,)),
    "glm4v_moe": DecoderType(
        biases="qkv", defaults={"kv_heads": 8}, fields=_ROUTED, rules=(routed_experts,)
    ),
    "chatglm": DecoderType(
        fields=("multi_query_attention", "add_bias_linear"),
        biases="qkv",
        bias_fields={"add_qkv_bias": "qkv"},
        rules=(chatglm,),
    ),
    "llama4": DecoderType(
        defaults={"head_dim": 128, "kv_heads": 8},
        fields=(
            *("num_local_experts", "num_experts_per_tok", "interleave_moe_layer_step"),
            *("intermediate_size_mlp", "attention_chunk_size", "moe_layers"),
            *("no_rope_layers", "no_rope_layer_interval"),
        ),
        rules=(llama4,),
    ),
    "granite": DecoderType(bias_fields=_QKV_OR_ALL),
    "granitemoe": _LIKE_MIXTRAL,
    "granitemoeshared": _LIKE_MIXTRAL,
    "cohere": DecoderType(tied=True),
    "cohere2": DecoderType(tied=True, window=4, defaults={"window": 4096}),
    "exaone4": DecoderType(window=4, defaults={"kv_heads": 32, "window": 4096}),
    "ernie4_5": DecoderType(
        tied=True, bias_fields={"use_bias": "all"}, defaults={"head_dim": 128, "kv_heads": 2}
    ),
    "ernie4_5_moe": DecoderType(
        tied=True,
        bias_fields={"use_bias": "all"},
        defaults={"kv_heads": 4},
        fields=(
            *("moe_intermediate_size", "moe_k", "moe_num_experts", "moe_num_shared_experts"),
            *("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
            "num_nextn_predict_layers",
        ),
        rules=(ernie_experts,),
    ),
    "hunyuan_v1_dense": DecoderType(),
    "seed_oss": DecoderType(
        biases="qkv",
        bias_fields=_QKV_OR_ALL,
        defaults={"head_dim": 128, "kv_heads": 8},
    ),
    "smollm3": DecoderType(
        tied=True,
        bias_fields=_QKV_OR_ALL,
        defaults={"kv_heads": 4},
        fields=("no_rope_layers", "no_rope_layer_interval"),
    ),
    "internlm2": DecoderType(bias_fields={"bias": "qkv"}),
    "minicpm": DecoderType(tied=True),
    "baichuan": DecoderType(),
    "mimo": DecoderType(biases="qkv", window="later", fields=_PREDICTS, rules=(predicts_ahead,)),
    "minimax_m2": DecoderType(
        fields=(*_SPARSE, *_PREDICTS), rules=(experts_of_all_layers, predicts_ahead)
    ),
}
