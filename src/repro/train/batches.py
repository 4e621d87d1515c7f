"""Batches of the enwiki datasets, each rank its own share."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

from repro.train.steps import Batch


def batches(
    dataset: Any, micro_batch_size: int, rank: int, ranks: int, device: torch.device
) -> Iterator[Batch]:
    """Endless micro batches; those of all ranks together walk through the dataset in order.

    Micro batch i of rank r is sequences (i n + r) b .. (i n + r + 1) b of the dataset, with n ranks
    and b sequences: what n ranks see in one iteration, one rank sees in n micro batches.
    """
    position = rank * micro_batch_size
    while True:
        rows = [dataset[(position + row) % len(dataset)] for row in range(micro_batch_size)]
        yield {name: value.to(device) for name, value in default_collate(rows).items()}
        position += ranks * micro_batch_size
