"""A service that tests share."""

from typing import Any

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.predict.serving.parameters import engine
from repro.predict.serving.served import Engine, Served, served

_ONE = {"tp": 1, "pp": 1, "ep": 1, "batch": 8, "input_tokens": 512, "output_tokens": 64}


def rows_of(model: str = "llama3.1-8b", **changed: Any) -> Served:
    """Rows of a model on one GPU, with some columns changed."""
    return served(open_model(model).shape, **{**_ONE, **changed})


def on(device: str = "h100-sxm-80gb", weights: str = "bf16", stack: str = "vllm") -> Engine:
    """A GPU with software."""
    return engine(gpu(device), weights, stack=stack)
