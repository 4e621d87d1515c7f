"""A service that tests share."""

from typing import Any

from repro.catalog.models.open_models import DecoderShape, open_model
from repro.catalog.systems.gpus import gpu
from repro.predict.serving.parameters import engine
from repro.predict.serving.served import Engine, Served, served

_ONE = {"tp": 1, "pp": 1, "ep": 1, "batch": 8, "input_tokens": 512, "output_tokens": 64}

# DeepSeek-V3 (2024, section 4.2): 3 dense layers of 61, 256 experts, latent attention.
LATENT = DecoderShape(
    layers=61,
    hidden=7168,
    heads=128,
    kv_heads=128,
    head_dim=192,
    value_dim=128,
    kv_rank=512,
    query_rank=1536,
    rope_dim=64,
    gated_mlp=True,
    experts=256,
    experts_per_token=8,
    expert_ffn=2048,
    shared_expert_ffn=2048,
    dense_layers=3,
    dense_ffn=18432,
    seq=4096,
    vocab=129280,
)


def rows_of(model: str = "llama3.1-8b", **changed: Any) -> Served:
    """Rows of a model on one GPU, with some columns changed."""
    return served(open_model(model).shape, **{**_ONE, **changed})


def on(device: str = "h100-sxm-80gb", weights: str = "bf16", stack: str = "vllm") -> Engine:
    """A GPU with software."""
    return engine(gpu(device), weights, stack=stack)
