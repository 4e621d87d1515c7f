"""Attention of a run: the choice of Megatron-Core's layers, and attention computed by torch."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from megatron.core.extensions.transformer_engine import HAVE_TE
from megatron.core.models.bert.bert_layer_specs import (
    bert_layer_local_spec,
    get_bert_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.T5.t5_spec import (
    get_t5_decoder_with_local_block_spec,
    get_t5_decoder_with_transformer_engine_block_spec,
    get_t5_encoder_with_local_block_spec,
    get_t5_encoder_with_transformer_engine_block_spec,
)
from megatron.core.transformer.attention import Attention as AttentionLayer
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from repro.catalog.systems.nodes import Attention
from repro.errors import ReproError


class LayerSpecs(NamedTuple):
    """Megatron-Core's specifications of one layer, or of a stack of T5's layers."""

    gpt: Callable[[TransformerConfig], Any]
    bert: Callable[[], Any]
    t5_encoder: Callable[[int], Any]
    t5_decoder: Callable[[int], Any]


_LOCAL = LayerSpecs(
    lambda config: get_gpt_layer_local_spec(
        config.num_moe_experts, normalization=config.normalization
    ),
    lambda: bert_layer_local_spec,
    get_t5_encoder_with_local_block_spec,
    get_t5_decoder_with_local_block_spec,
)
_TRANSFORMER_ENGINE = LayerSpecs(
    lambda config: get_gpt_layer_with_transformer_engine_spec(config.num_moe_experts),
    get_bert_layer_with_transformer_engine_spec,
    get_t5_encoder_with_transformer_engine_block_spec,
    get_t5_decoder_with_transformer_engine_block_spec,
)


def layer_specs(attention: Attention) -> LayerSpecs:
    """Return a model's layers; those for `torch` still hold Megatron-Core's attention.

    Raises
    ------
    ReproError
        The attention needs Transformer Engine, which cannot be imported.
    """
    if attention != "transformer-engine":
        return _LOCAL
    if not HAVE_TE:
        raise ReproError(
            f"attention is {attention}, but transformer_engine cannot be imported here; install "
            "transformer-engine[pytorch] or set attention to torch or megatron"
        )
    return _TRANSFORMER_ENGINE


class TorchAttention(MegatronModule):  # type: ignore[misc]
    """Megatron-Core's core attention, computed by torch's `scaled_dot_product_attention`.

    On a GPU that is a flash or memory-efficient kernel. It does not store the scores of all pairs
    of tokens, as Megatron-Core's `DotProductAttention` does. Both have the same interface.

    Parameters
    ----------
    config : TransformerConfig
        Configuration of the layer.
    attn_mask_type : AttnMaskType
        With `causal`, the kernels mask, and `forward` ignores its mask tensor. Padding is at the
        end, where no token that counts sees it.
    attention_dropout, softmax_scale : float, optional
        Values instead of the configuration's dropout, and of one over the root of a head's width.
    layer_number, attention_type, cp_comm_type, pg_collection
        Arguments without an effect.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__(config=config)
        self._causal = attn_mask_type == AttnMaskType.causal
        self._dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        # Megatron-Core's scaling by the layer's number changes where fp16 rounds, not the result.
        self._scale = 1 / math.sqrt(config.kv_channels) if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """Return the attention of each query (sequence, batch, hidden).

        Queries, keys and values are (sequence, batch, heads, width of a head), the latter two with
        as many heads or fewer. The mask, if it is needed, is (batch, 1, queries or 1, keys), true
        where a key is hidden.
        """
        assert attention_bias is None and packed_seq_params is None
        attended = functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            attn_mask=None if self._causal or attention_mask is None else _seen(attention_mask),
            dropout_p=self._dropout if self.training else 0.0,
            is_causal=self._causal,
            scale=self._scale,
            # Groups of queries may share keys.
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return attended.permute(2, 0, 1, 3).flatten(2)


def _seen(hidden: torch.Tensor) -> torch.Tensor:
    """Convert Megatron-Core's mask to torch's.

    A padded query sees no key, so its softmax is NaN, which would spread through the gradients.
    It gets all keys, as it in effect does in Megatron-Core; its output counts nowhere.
    """
    return ~hidden | hidden.all(dim=-1, keepdim=True)


def use_torch_attention(model: MegatronModule) -> None:
    """Replace every attention of a model of local layers by `TorchAttention`.

    The model exists already, because Megatron-Core's BERT rejects specifications with other
    attentions than its own: from them it infers the shape of its masks.
    """
    for layer in list(model.modules()):
        if isinstance(layer, AttentionLayer):
            layer.core_attention = TorchAttention(
                layer.config,
                layer.layer_number,
                layer.attn_mask_type,
                layer.attention_type,
                softmax_scale=layer.config.softmax_scale,
            )
