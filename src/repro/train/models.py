"""Build Megatron-Core's GPT, BERT and T5, or one pipeline stage of them, from a shape."""

import torch
from megatron.core import parallel_state
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.timers import Timers
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from repro.catalog.models import Family, Shape
from repro.catalog.nodes import Attention
from repro.catalog.stages import layers_per_stage
from repro.train.attention import layer_specs, use_torch_attention
from repro.train.records import TrainingRun
from repro.train.t5_stage import T5Stage

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TOKEN_TYPES = 2


def transformer_config(run: TrainingRun, timers: Timers) -> TransformerConfig:
    """Megatron-Core's configuration of a model; dropout is off, so that runs can be compared."""
    shape, precision = run.shape, run.precision
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.attention_heads,
        tensor_model_parallel_size=run.tensor_parallel,
        sequence_parallel=run.sequence_parallel,
        pipeline_model_parallel_size=run.pipeline_parallel,
        pipeline_dtype=DTYPES[precision],
        # As Megatron-LM sets it: what was sent is freed, as autograd needs its history only.
        deallocate_pipeline_outputs=True,
        # Requests one by one, so that receives and sends can be told apart.
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


def build_model(
    family: Family, shape: Shape, config: TransformerConfig, attention: Attention = "megatron"
) -> MegatronModule:
    """What this rank holds: a whole model, or its stage of a pipeline.

    Embedding and output share weights, also where they are on different stages.

    Raises
    ------
    ReproError
        The stages cannot share the layers evenly, or the attention is not installed.
    """
    layers_per_stage(family, shape.layers, config.pipeline_model_parallel_size)
    specs = layer_specs(attention)
    common = {
        "vocab_size": shape.vocabulary_size,
        "max_sequence_length": shape.sequence_length,
        "share_embeddings_and_output_weights": True,
        "pre_process": parallel_state.is_pipeline_first_stage(),
        "post_process": parallel_state.is_pipeline_last_stage(),
    }
    if family == "gpt":
        model = GPTModel(config, specs.gpt(), **common)
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
