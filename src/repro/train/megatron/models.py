"""Models of Megatron-Core from a shape: GPT, BERT, T5, or one pipeline stage of them."""

from typing import Any

import torch
import torch.nn.functional as functional
from megatron.core import parallel_state
from megatron.core.extensions.transformer_engine import HAVE_TE
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.timers import Timers
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.models.papers import Family
from repro.catalog.models.stages import layers_per_stage
from repro.catalog.models.trainable import AnyShape
from repro.catalog.systems.nodes import Attention
from repro.train.megatron.attention import layer_specs, use_torch_attention
from repro.train.megatron.t5_stage import T5Stage
from repro.train.records import TrainingRun

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TOKEN_TYPES = 2
if not HAVE_TE:
    # Megatron-Core's router reads this name, which is missing then.
    moe_utils.te_general_gemm = None
# Coefficient of the load-balancing loss of experts (Muennighoff et al., OLMoE, 2024, section 3).
_BALANCE_LOSS = 0.01


def transformer_config(run: TrainingRun, timers: Timers) -> TransformerConfig:
    """Return a model's configuration for Megatron-Core; dropout is off, to compare runs."""
    shape, precision = run.shape, run.precision
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden_size,
        **_architecture(shape, run.expert_parallel),
        tensor_model_parallel_size=run.tensor_parallel,
        sequence_parallel=run.sequence_parallel,
        pipeline_model_parallel_size=run.pipeline_parallel,
        pipeline_dtype=DTYPES[precision],
        # As in Megatron-LM, sent tensors are freed, because autograd needs their history only.
        deallocate_pipeline_outputs=True,
        # Separate requests distinguish receives and sends.
        batch_p2p_comm=False,
        params_dtype=DTYPES[precision],
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=not torch.cuda.is_available(),
        timers=timers,
        barrier_with_L1_time=False,
    )


def _architecture(shape: AnyShape, expert_parallel: int) -> dict[str, Any]:
    """Return the settings in which a current decoder differs from the papers' models."""
    if not isinstance(shape, DecoderShape):
        return {
            "ffn_hidden_size": shape.ffn_hidden_size,
            "num_attention_heads": shape.attention_heads,
        }
    decoder = {
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "kv_channels": shape.head_dim,
        "normalization": "RMSNorm",
        "gated_linear_unit": shape.gated_mlp,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        # Megatron-Core needs the width of dense layers, also if there are none.
        "ffn_hidden_size": shape.ffn or shape.expert_ffn,
    }
    if not shape.experts:
        return decoder
    return decoder | {
        "num_moe_experts": shape.experts,
        "moe_router_topk": shape.experts_per_token,
        "moe_ffn_hidden_size": shape.expert_ffn,
        "moe_shared_expert_intermediate_size": shape.shared_expert_ffn or None,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": _BALANCE_LOSS,
        "expert_model_parallel_size": expert_parallel,
    }


def build_model(
    family: Family, shape: AnyShape, config: TransformerConfig, attention: Attention = "megatron"
) -> MegatronModule:
    """Build the part of a model on this rank: all of it, or a pipeline stage.

    Embedding and output share weights, also on different stages; in a current decoder they do not.

    Raises
    ------
    ReproError
        The layers do not divide evenly into stages, or the attention is not installed.
    """
    layers_per_stage(family, shape.layers, config.pipeline_model_parallel_size)
    specs = layer_specs(attention)
    common = {
        "vocab_size": shape.vocabulary_size,
        "max_sequence_length": shape.sequence_length,
        "share_embeddings_and_output_weights": not isinstance(shape, DecoderShape),
        "pre_process": parallel_state.is_pipeline_first_stage(),
        "post_process": parallel_state.is_pipeline_last_stage(),
    }
    if isinstance(shape, DecoderShape):
        model = GPTModel(config, specs.gpt(config), position_embedding_type="rope", **common)
    elif family == "gpt":
        model = GPTModel(config, specs.gpt(config), **common)
    elif family == "bert":
        model = BertModel(config, _TOKEN_TYPES, specs.bert(), **common)
    elif config.pipeline_model_parallel_size > 1:
        model = T5Stage(config, shape, specs)
    else:
        model = T5Model(
            config,
            # The encoder's configuration; the same depth and width as the decoder's.
            config,
            specs.t5_encoder(shape.layers),
            specs.t5_decoder(shape.layers),
            **common,
        )
    if attention == "torch":
        use_torch_attention(model)
    return model
