"""Tensors of a decoder on Megatron-Core's ranks, counted one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
import torch.nn.functional as functional
from held_memory import SavedTensors
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt import GPTModel, gpt_layer_specs
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import random
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import router
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from split_norms import SplitNorm, split_norms

from repro.catalog.models.open_models import DecoderShape
from repro.train.training import optimizers


@dataclass(frozen=True)
class Sizes:
    """Parallel sizes without a pipeline, sequences of a micro batch, and what is recomputed."""

    tp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    micro_batch: int = 4
    recompute: Literal["none", "selective", "full"] = "none"
    zero: int = 1


@dataclass(frozen=True)
class Tensors:
    """Bytes on one rank: states, what autograd keeps after a forward pass, and its peak."""

    weights: int
    gradients: int
    optimizer_states: int
    kept: int
    peak: int


def count(shape: DecoderShape, sizes: Sizes) -> Tensors:
    """Count a rank's tensors in one iteration of fp32 training."""
    with _as_fused():
        model, ddp = _build(shape, sizes, torch.float32, True)
        optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=sizes.zero > 0),
            [ddp],
            use_gloo_process_groups=False,
        )
        tokens = torch.randint(shape.vocab, (sizes.micro_batch, shape.seq))
        positions = torch.arange(shape.seq).expand_as(tokens)
        saved = SavedTensors(model.parameters())
        with saved.counting():
            loss = ddp(tokens, positions, None, labels=tokens).mean()
            kept = saved.peak_bytes
            loss.backward()
        ddp.finish_grad_sync()
        optimizer.step()
    moments = [
        value
        for part in optimizers(optimizer)
        for state in part.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    ]
    return Tensors(
        weights=sum(one.nbytes for one in model.parameters()),
        gradients=sum(one.grad_data.nbytes for one in _buffers(ddp)),
        optimizer_states=sum(one.nbytes for one in moments),
        kept=kept,
        peak=saved.peak_bytes,
    )


def gradient_bytes(shape: DecoderShape, reduce_in_fp32: bool) -> float:
    """Count the bytes of a gradient's element in memory, of bf16 weights."""
    with _as_fused():
        model, ddp = _build(shape, Sizes(), torch.bfloat16, reduce_in_fp32)
    elements = sum(one.numel() for one in model.parameters())
    return sum(one.grad_data.nbytes for one in _buffers(ddp)) / elements


def _build(
    shape: DecoderShape, sizes: Sizes, weights: torch.dtype, reduce_in_fp32: bool
) -> tuple[GPTModel, DistributedDataParallel]:
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=sizes.tp,
        expert_model_parallel_size=sizes.ep,
        expert_tensor_parallel_size=sizes.etp,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(1, inference_rng_tracker=True, force_reset_rng=True)
    config = _config(shape, sizes, weights)
    model = GPTModel(
        config,
        get_gpt_decoder_block_spec(config, use_transformer_engine=False),
        shape.vocab,
        shape.seq,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=shape.tied,
    )
    shared = DistributedDataParallelConfig(
        use_distributed_optimizer=sizes.zero > 0, grad_reduce_in_fp32=reduce_in_fp32
    )
    return model, DistributedDataParallel(config, shared, model)


def _buffers(ddp: DistributedDataParallel) -> list[Any]:
    return [*ddp.buffers, *ddp.expert_parallel_buffers]


def _config(shape: DecoderShape, sizes: Sizes, weights: torch.dtype) -> TransformerConfig:
    options: dict[str, Any] = {}
    if shape.experts:
        options |= {
            "num_moe_experts": shape.experts,
            "moe_router_topk": shape.experts_per_token,
            "moe_ffn_hidden_size": shape.expert_ffn,
            "moe_shared_expert_intermediate_size": shape.shared_expert_ffn or None,
            "moe_token_dispatcher_type": "alltoall",
            "moe_layer_freq": [int(at >= shape.dense_layers) for at in range(shape.layers)],
            "moe_router_load_balancing_type": "none",
            "moe_router_force_load_balancing": True,
        }
    if shape.kv_rank:
        options |= {
            "q_lora_rank": shape.query_rank,
            "kv_lora_rank": shape.kv_rank,
            "qk_head_dim": shape.head_dim - shape.rope_dim,
            "qk_pos_emb_head_dim": shape.rope_dim,
            "v_head_dim": shape.value_dim,
            "qk_layernorm": True,
            "rope_type": "rope",
        }
    if sizes.recompute != "none":
        options["recompute_granularity"] = sizes.recompute
    if sizes.recompute == "full":
        options |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    kind = MLATransformerConfig if shape.kv_rank else TransformerConfig
    return kind(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.dense_ffn or shape.ffn or shape.expert_ffn,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        gated_linear_unit=shape.gated_mlp,
        activation_func=functional.silu,
        bias_activation_fusion=True,
        add_bias_linear=False,
        normalization="LayerNorm",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=sizes.tp,
        sequence_parallel=sizes.tp > 1,
        expert_model_parallel_size=sizes.ep,
        expert_tensor_parallel_size=sizes.etp,
        params_dtype=weights,
        bf16=weights == torch.bfloat16,
        use_cpu_initialization=True,
        **options,
    )


@contextmanager
def _as_fused() -> Iterator[None]:
    """Let Megatron-Core keep on a CPU what it keeps with fused kernels, and recompute there.

    Attention, norms and activations keep their inputs, as Transformer Engine's do. Tokens choose
    experts in turn, so that all ranks have as many.
    """
    with (
        split_norms(),
        mock.patch.object(gpt_layer_specs, "LNImpl", SplitNorm),
        mock.patch.object(LocalSpecProvider, "core_attention", lambda _: FusedAttention),
        # The name of a class, which is None without Transformer Engine.
        mock.patch.object(multi_latent_attention, "TELinear", SplitNorm),
        mock.patch.object(router, "apply_random_logits", _in_turn),
        mock.patch.object(random, "_get_cuda_rng_state", lambda **_: None),
        mock.patch.object(random, "_set_cuda_rng_state", lambda *_, **__: None),
    ):
        yield


def _in_turn(logits: torch.Tensor) -> torch.Tensor:
    experts = logits.shape[-1]
    tokens = torch.arange(logits.numel() // experts).view(*logits.shape[:-1], 1)
    return 0 * logits - (torch.arange(experts) - 2 * tokens) % experts


class FusedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention in the place of Megatron-Core's, which keeps all scores on a CPU."""

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__(config=config)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Return sums of values (sequence, batch, hidden)."""
        attended: torch.Tensor = _Attended.apply(query, key, value)
        return attended


class _Attended(torch.autograd.Function):
    """Attention that keeps its inputs and its output, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        attended = _attend(*inputs)
        ctx.save_for_backward(*(one.contiguous() for one in inputs), attended)
        return attended

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [one.detach().requires_grad_() for one in ctx.saved_tensors[:3]]
        with torch.enable_grad():
            attended = _attend(*inputs)
        return torch.autograd.grad(attended, inputs, gradient)


def _attend(*inputs: torch.Tensor) -> torch.Tensor:
    queries, keys, values = (one.permute(1, 2, 0, 3) for one in inputs)
    attended = functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, enable_gqa=queries.shape[1] != keys.shape[1]
    )
    return attended.permute(2, 0, 1, 3).flatten(2)
