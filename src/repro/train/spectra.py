"""Information content of training messages: ranks and entropies of gradients and activations."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer

from repro.catalog.parallel.partitions import BLOCK
from repro.train.megatron.groups import alone
from repro.train.partition.quantised import to_integers
from repro.train.records import Spectrum, TrainingRun
from repro.train.run import device_scope, iterate
from repro.train.training import set_up


def effective_rank(matrix: torch.Tensor) -> float:
    """Return the effective rank (Roy and Vetterli, EUSIPCO 2007).

    It is the exponential of the entropy of singular values over their sum: the full rank if all are
    equal.
    """
    values = torch.linalg.svdvals(matrix.float())
    return float(torch.special.entr(values / values.sum()).sum().exp())


def entropy_bits(values: torch.Tensor) -> float:
    """Return the entropy of numbers as 8-bit integers with a scale per block: at most 8 bits."""
    integers = to_integers(values.reshape(1, -1), bits=8)[0, : values.numel()]
    shares = integers.int().bincount() / values.numel()
    return float(torch.special.entr(shares).sum() / torch.log(torch.tensor(2.0)))


def watch_spectra(run: TrainingRun, every: int, scratch: Path) -> list[Spectrum]:
    """Train a run on this process alone, and measure its matrices every `every` steps.

    Gradients are those of weights with at least a block of numbers. Activations are the outputs of
    layers, tokens by hidden size.
    """
    torch.set_num_threads(1)
    with device_scope(), alone():
        return list(_spectra(run, every, scratch))


def _spectra(run: TrainingRun, every: int, scratch: Path) -> Iterator[Spectrum]:
    state = set_up(run, scratch)
    handed_on: dict[str, torch.Tensor] = {}
    for name, layer in state.module.named_modules():
        if isinstance(layer, TransformerLayer):
            layer.register_forward_hook(partial(_keep, handed_on, name))
    for step in range(run.iterations + 1):
        iterate(state, [next(state.training) for _ in range(run.microbatches)])
        if step % every:
            continue
        gradients = {
            name: weight.main_grad
            for name, weight in state.module.named_parameters()
            if weight.dim() == 2 and weight.numel() >= BLOCK
        }
        for kind, matrices in (("gradient", gradients), ("activation", handed_on)):
            for name, matrix in matrices.items():
                share = effective_rank(matrix) / min(matrix.shape)
                yield Spectrum(kind, name, step, share, entropy_bits(matrix))


def _keep(handed_on: dict[str, torch.Tensor], name: str, *call: Any) -> None:
    """Keep a layer's hidden states, the first item of its output; a forward hook."""
    hidden = call[-1][0].detach()
    handed_on[name] = hidden.reshape(-1, hidden.shape[-1])
