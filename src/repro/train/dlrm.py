"""Small recommendation model (DLRM) on one device.

Each table's rows are looked up and summed. Gradients change the looked-up rows at once, as fused
optimizers do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as functional

from repro.catalog.models.dlrm import DlrmShape, Table

_RATE = 0.01


@dataclass(frozen=True)
class Lookups:
    """Lookups in one table: rows, where each sample's begin, and the sample of each row."""

    rows: torch.Tensor
    offsets: torch.Tensor
    samples: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """Dense features and labels of samples, and the lookups in each table."""

    dense: torch.Tensor
    clicked: torch.Tensor
    lookups: tuple[Lookups, ...]


class Dlrm:
    """Tables and dense layers of a recommendation model, with its training step."""

    def __init__(self, shape: DlrmShape, tables: Sequence[Table]) -> None:
        torch.manual_seed(0)
        self._shape, self._tables = shape, tables
        self.weights = [_initial(one.rows, shape.width) for one in tables]
        vectors = len(tables) + 1
        self.bottom = _layers(shape.dense, *shape.bottom, shape.width)
        self.top = _layers(vectors**2 + shape.width, *shape.top, 1)
        self._dense = [*self.bottom.parameters(), *self.top.parameters()]

    def batch(self, seed: int) -> Batch:
        """Draw random samples."""
        draw = torch.Generator().manual_seed(seed)
        size = self._shape.batch
        dense = torch.rand(size, self._shape.dense, generator=draw)
        clicked = torch.randint(2, (size, 1), generator=draw).float()
        lookups = []
        for one in self._tables:
            rows = torch.randint(one.rows, (size * one.pooling,), generator=draw)
            samples = torch.arange(size).repeat_interleave(one.pooling)
            lookups.append(Lookups(rows, torch.arange(size) * one.pooling, samples))
        return Batch(dense, clicked, tuple(lookups))

    def iterate(self, batch: Batch) -> float:
        """Run forward, backward and the step, and return the loss."""
        with torch.no_grad():
            sums = [
                functional.embedding_bag(one.rows, weight, one.offsets, mode="sum")
                for one, weight in zip(batch.lookups, self.weights, strict=True)
            ]
        features = torch.stack(sums, 1).requires_grad_()
        logits = self._logits(batch.dense, features)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.clicked)
        loss.backward()  # type: ignore[no-untyped-call]
        assert features.grad is not None
        self._step(batch.lookups, features.grad)
        return float(loss.detach())

    def _logits(self, dense: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        below = self.bottom(dense)
        vectors = torch.cat([below[:, None], features], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        logits: torch.Tensor = self.top(torch.cat([products, below], 1))
        return logits

    @torch.no_grad()
    def _step(self, lookups: Sequence[Lookups], gradients: torch.Tensor) -> None:
        for number, (one, weight) in enumerate(zip(lookups, self.weights, strict=True)):
            changes = gradients[:, number].index_select(0, one.samples)
            weight.index_add_(0, one.rows, changes, alpha=-_RATE)
        for parameter in self._dense:
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-_RATE)
            parameter.grad = None


def _initial(rows: int, width: int) -> torch.Tensor:
    """Return numbers between -1 and 1."""
    return torch.arange(rows * width).view(rows, width).float().sin_()


def _layers(*widths: int) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    # There is no activation after the last layer.
    return torch.nn.Sequential(*layers[:-1])
