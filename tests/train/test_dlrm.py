"""A recommendation model learns as one of PyTorch's modules and optimizer does."""

import pytest
import torch
from torch.nn import functional

from repro.catalog.models.dlrm import DlrmShape, Table
from repro.train.dlrm import Batch, Dlrm

_SHAPE = DlrmShape(dense=3, width=6, bottom=(5,), top=(4,), batch=12)
_TABLES = (Table(20, 3), Table(11, 7), Table(30, 1))
_STEPS, _RATE = 3, 0.01


def _loss(model: Dlrm, bags: torch.nn.ModuleList, batch: Batch) -> torch.Tensor:
    """Naumov et al., 2019: dot products of all pairs of vectors, beside the dense one."""
    sums = [bag(one.rows, one.offsets) for bag, one in zip(bags, batch.lookups, strict=True)]
    dense = model.bottom(batch.dense)
    vectors = torch.stack([dense, *sums], 1)
    pairs = torch.einsum("bik,bjk->bij", vectors, vectors).flatten(1)
    logits = model.top(torch.cat([pairs, dense], 1))
    return functional.binary_cross_entropy_with_logits(logits, batch.clicked)


def test_steps_are_those_of_stochastic_gradient_descent() -> None:
    model, reference = Dlrm(_SHAPE, _TABLES), Dlrm(_SHAPE, _TABLES)
    bags = torch.nn.ModuleList(
        torch.nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum")
        for weight in model.weights
    )
    parameters = [*bags.parameters(), *reference.bottom.parameters(), *reference.top.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=_RATE)
    for seed in range(_STEPS):
        batch = model.batch(seed)
        optimizer.zero_grad()
        loss = _loss(reference, bags, batch)
        loss.backward()
        optimizer.step()
        assert model.iterate(batch) == pytest.approx(loss.item(), rel=1e-5)
    for weight, bag in zip(model.weights, bags, strict=True):
        assert torch.allclose(weight, bag.weight, atol=1e-6)
    for one, other in zip(model.top.parameters(), reference.top.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
