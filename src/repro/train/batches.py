"""Batches of the enwiki datasets, each replica its own share."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate

from repro.train.steps import Batch


def batches(
    dataset: Any, micro_batch_size: int, replica: int, replicas: int, device: torch.device
) -> Iterator[Batch]:
    """Endless micro batches; those of all replicas together walk through the dataset in order.

    Micro batch i of replica r is sequences (i n + r) b .. (i n + r + 1) b of the dataset, with n
    replicas and b sequences: what n replicas see in one iteration, one sees in n times the micro
    batches. Every stage of a replica has the same.
    """
    position = replica * micro_batch_size
    while True:
        rows = [dataset[(position + row) % len(dataset)] for row in range(micro_batch_size)]
        yield {name: value.to(device) for name, value in default_collate(rows).items()}
        position += replicas * micro_batch_size
