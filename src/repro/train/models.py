"""Build Megatron-Core's GPT, BERT and T5 from a shape."""

import torch
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.models.T5.t5_spec import (
    get_t5_decoder_with_local_block_spec,
    get_t5_encoder_with_local_block_spec,
)
from megatron.core.timers import Timers
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from repro.catalog.models import Family, Shape
from repro.train.records import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TOKEN_TYPES = 2


def transformer_config(shape: Shape, precision: Precision, timers: Timers) -> TransformerConfig:
    """Megatron-Core's configuration of a model; dropout is off, so that runs can be compared."""
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.attention_heads,
        params_dtype=DTYPES[precision],
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=not torch.cuda.is_available(),
        timers=timers,
        barrier_with_L1_time=False,
    )


def build_model(family: Family, shape: Shape, config: TransformerConfig) -> MegatronModule:
    """The model of one data-parallel rank, all layers of it; embedding and output share weights."""
    common = {
        "vocab_size": shape.vocabulary_size,
        "max_sequence_length": shape.sequence_length,
        "share_embeddings_and_output_weights": True,
    }
    if family == "gpt":
        return GPTModel(config, get_gpt_layer_local_spec(), **common)
    if family == "bert":
        return BertModel(config, _TOKEN_TYPES, bert_layer_local_spec, **common)
    return T5Model(
        config,
        # The encoder's configuration; the same depth and width as the decoder's.
        config,
        get_t5_encoder_with_local_block_spec(shape.layers),
        get_t5_decoder_with_local_block_spec(shape.layers),
        **common,
    )
