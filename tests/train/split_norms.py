"""Layer norms for sequence parallelism where neither Apex nor Transformer Engine is."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from megatron.core.models import backends
from megatron.core.transformer import transformer_block


class SplitNorm(torch.nn.LayerNorm):
    """A layer norm that knows of sequence parallelism, as Apex's and Transformer Engine's do."""

    def __init__(self, config: object, hidden_size: int, eps: float, **_: object) -> None:
        super().__init__(hidden_size, eps)
        for weight in self.parameters():
            weight.sequence_parallel = True


@contextmanager
def split_norms() -> Iterator[None]:
    """Megatron-Core builds models with them in this scope."""
    with (
        mock.patch.object(backends, "LNImpl", SplitNorm),
        mock.patch.object(transformer_block, "LayerNormImpl", SplitNorm),
    ):
        yield
