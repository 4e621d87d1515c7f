"""A small recommendation model (DLRM), whose tables are spread over ranks in any plan.

Each rank looks its shards' rows up for the samples of all ranks and sends every rank the sums of
its samples. There columns lie side by side and parts of rows add up, so that one exchange serves
tables that are whole, divided by rows or divided by columns. Gradients go back the same way, and
change the looked-up rows at once, as fused optimizers do. Dense layers are replicas with an
all-reduce. Each rank has its shards' indices before the iteration begins, as batches of other
models are loaded outside the clock.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as functional

from repro.catalog.models.dlrm import DlrmShape, Shard, Table

_RATE = 0.01
# Collectives divide an iteration into so many passes.
PASSES = 4


@dataclass(frozen=True)
class Lookups:
    """What one shard looks up for all ranks' samples: rows, where each sample's begin, and whose
    they are."""

    rows: torch.Tensor
    offsets: torch.Tensor
    samples: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """This rank's samples, and what its shards look up for everybody's."""

    dense: torch.Tensor
    clicked: torch.Tensor
    lookups: tuple[Lookups, ...]


class Dlrm:
    """One rank's shards and its replica of the dense layers.

    Parameters
    ----------
    shards
        Of all ranks, by rank.
    Attributes
    ----------
    passes_s, collectives_s
        Of the last iteration: CPU time of what is computed before, between and behind the
        collectives, and what these took.
    """

    def __init__(
        self,
        shape: DlrmShape,
        tables: Sequence[Table],
        shards: Sequence[Shard],
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        torch.manual_seed(0)
        self._shape, self._tables = shape, tables
        self._rank, self._ranks = rank, ranks
        self.passes_s: list[float] = []
        self.collectives_s: list[float] = []
        self._by_rank = {owner: list(own) for owner, own in groupby(shards, lambda one: one.rank)}
        self._own = self._by_rank.get(rank, [])
        self.weights = [_initial(one, shape.width) for one in self._own]
        together = len(tables) + 1
        self.bottom = _layers(shape.dense, *shape.bottom, shape.width)
        self.top = _layers(together**2 + shape.width, *shape.top, 1)
        self._dense = [*self.bottom.parameters(), *self.top.parameters()]

    def batch(self, seed: int) -> Batch:
        """Samples of all ranks, the same on each, and this rank's part of them."""
        draw = torch.Generator().manual_seed(seed)
        size = self._shape.batch
        everybody = self._ranks * size
        dense = torch.rand(everybody, self._shape.dense, generator=draw)
        clicked = torch.randint(2, (everybody, 1), generator=draw).float()
        rows = [
            torch.randint(one.rows, (everybody, one.pooling), generator=draw)
            for one in self._tables
        ]
        mine = slice(self._rank * size, (self._rank + 1) * size)
        lookups = tuple(_in_shard(rows[one.table], one.rows) for one in self._own)
        return Batch(dense[mine], clicked[mine], lookups)

    def iterate(self, batch: Batch) -> float:
        """Forward, backward and the step; the loss."""
        self.passes_s, self.collectives_s = [], []
        with self._computing(), torch.no_grad():
            sums = [
                functional.embedding_bag(one.rows, weight, one.offsets, mode="sum")
                for one, weight in zip(batch.lookups, self.weights, strict=True)
            ]
            looked_up = (
                torch.cat(sums, 1)
                if sums
                else batch.dense.new_empty(self._ranks * len(batch.dense), 0)
            )
        received = self._to_owners_of_samples(looked_up)
        with self._computing():
            features = self._assembled(received).requires_grad_()
            logits = self._logits(batch.dense, features)
            loss = functional.binary_cross_entropy_with_logits(logits, batch.clicked)
            loss.backward()  # type: ignore[no-untyped-call]
            assert features.grad is not None
            gradients = self._taken_apart(features.grad)
        returned = self._to_owners_of_shards(gradients)
        with self._computing():
            self._change_tables(batch.lookups, returned)
            summed = torch.cat([one.grad.flatten() for one in self._dense if one.grad is not None])
        if self._ranks > 1:
            with self._meeting():
                dist.all_reduce(summed)
        with self._computing():
            self._change_dense(summed)
        return float(loss.detach())

    @contextmanager
    def _computing(self) -> Iterator[None]:
        start = time.process_time()
        yield
        self.passes_s.append(time.process_time() - start)

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.collectives_s.append(time.monotonic() - start)

    def _columns(self, rank: int) -> int:
        """Of all shards of a rank."""
        return sum(one.columns[1] - one.columns[0] for one in self._by_rank.get(rank, []))

    def _to_owners_of_samples(self, looked_up: torch.Tensor) -> torch.Tensor:
        """From (samples of all, columns of own shards) to (own samples, columns) of each rank."""
        size = self._shape.batch
        given = self._ranks * [size * self._columns(self._rank)]
        return self._exchanged(
            looked_up, given, [size * self._columns(rank) for rank in range(self._ranks)]
        )

    def _to_owners_of_shards(self, gradients: torch.Tensor) -> torch.Tensor:
        """The way back: (samples of all, columns of own shards)."""
        size, own = self._shape.batch, self._columns(self._rank)
        given = [size * self._columns(rank) for rank in range(self._ranks)]
        return self._exchanged(gradients, given, self._ranks * [size * own]).view(
            self._ranks * size, own
        )

    def _exchanged(self, data: torch.Tensor, given: list[int], taken: list[int]) -> torch.Tensor:
        if self._ranks == 1:
            return data.flatten()
        result = data.new_empty(sum(taken))
        with self._meeting():
            dist.all_to_all_single(result, data.flatten(), taken, given)
        return result

    def _assembled(self, received: torch.Tensor) -> torch.Tensor:
        """Features (sample, table, column) of what each rank sent."""
        size = self._shape.batch
        features = received.new_zeros(size, len(self._tables), self._shape.width)
        counts = [size * self._columns(rank) for rank in self._by_rank]
        for shards, part in zip(self._by_rank.values(), torch.split(received, counts), strict=True):
            widths = [one.columns[1] - one.columns[0] for one in shards]
            for shard, sums in zip(
                shards, torch.split(part.view(size, -1), widths, 1), strict=True
            ):
                features[:, shard.table, slice(*shard.columns)].add_(sums)
        return features

    def _taken_apart(self, gradients: torch.Tensor) -> torch.Tensor:
        """What of the features' gradients each rank's shards get, one rank after the other."""
        parts = [
            torch.cat([gradients[:, one.table, slice(*one.columns)] for one in own], 1).flatten()
            for own in self._by_rank.values()
        ]
        return torch.cat(parts)

    def _logits(self, dense: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        below = self.bottom(dense)
        vectors = torch.cat([below[:, None], features], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        logits: torch.Tensor = self.top(torch.cat([products, below], 1))
        return logits

    @torch.no_grad()
    def _change_tables(self, lookups: Sequence[Lookups], gradients: torch.Tensor) -> None:
        widths = [one.columns[1] - one.columns[0] for one in self._own]
        # A rank's loss is the mean over its own samples.
        step = -_RATE / self._ranks
        parts = torch.split(gradients, widths, 1)
        for one, weight, part in zip(lookups, self.weights, parts, strict=True):
            weight.index_add_(0, one.rows, part.index_select(0, one.samples), alpha=step)

    @torch.no_grad()
    def _change_dense(self, summed: torch.Tensor) -> None:
        parts = torch.split(summed, [one.numel() for one in self._dense])
        for weight, gradient in zip(self._dense, parts, strict=True):
            weight.add_(gradient.view_as(weight), alpha=-_RATE / self._ranks)
            weight.grad = None


def laps_s(model: Dlrm, batches: Iterator[Batch]) -> list[float]:
    """The next iteration's passes on this rank, then its collectives, in seconds."""
    model.iterate(next(batches))
    return [*model.passes_s, *model.collectives_s]


def _initial(shard: Shard, width: int) -> torch.Tensor:
    """Numbers that do not depend on how a table is divided."""
    numbers = torch.arange(*shard.rows)[:, None] * width + torch.arange(*shard.columns)
    return numbers.float().sin_()


def _layers(*widths: int) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    # Nothing behind the last one.
    return torch.nn.Sequential(*layers[:-1])


def _in_shard(rows: torch.Tensor, ends: tuple[int, int]) -> Lookups:
    """Of (sample, rows) those that a shard has, counted from its first."""
    first, last = ends
    inside = (rows >= first) & (rows < last)
    counts = inside.sum(1)
    return Lookups(
        rows[inside] - first,
        counts.cumsum(0) - counts,
        torch.arange(len(rows)).repeat_interleave(counts),
    )
