"""What a rank holds while Megatron-Core trains, counted tensor by tensor."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from interleaved import interleaved_chunks, pass_through
from megatron.core.tensor_parallel import random
from megatron.core.timers import Timers
from megatron.core.transformer.transformer_config import TransformerConfig
from split_norms import split_norms
from torch.autograd.graph import saved_tensors_hooks

from repro.predict.workload import Recompute
from repro.train.megatron.models import transformer_config
from repro.train.phases import create_timers
from repro.train.records import TrainingRun
from repro.train.run import forward_backward, iterate
from repro.train.training import Training, optimizers, set_up


@dataclass(frozen=True)
class Held:
    """Bytes of a rank: parameters, gradients and states of the optimizer; the most that autograd
    kept at once in an iteration; and the most that was allocated at once, with all of these."""

    weights: int
    gradients: int
    optimizer_states: int
    saved: int
    peak: int


class SavedTensors:
    """Bytes that autograd keeps for backward passes: every storage once, parameters left out."""

    def __init__(self, left_out: Iterable[torch.Tensor]) -> None:
        self._left_out = {one.untyped_storage().data_ptr() for one in left_out}
        self._uses: Counter[int] = Counter()
        self._bytes = self.peak_bytes = 0

    def counting(self) -> saved_tensors_hooks:
        """A scope whose tensors count."""
        return saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    def _pack(self, tensor: torch.Tensor) -> "_Kept":
        storage = tensor.untyped_storage()
        at = storage.data_ptr()
        if at in self._left_out:
            return _Kept(tensor, lambda: None)
        if not self._uses[at]:
            self._bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._bytes)
        self._uses[at] += 1
        return _Kept(tensor, partial(self._freed, at, storage.nbytes()))

    def _freed(self, at: int, size_bytes: int) -> None:
        self._uses[at] -= 1
        if not self._uses[at]:
            self._bytes -= size_bytes


class _Kept:
    """A saved tensor, which says when it is freed."""

    def __init__(self, tensor: torch.Tensor, freed: Any) -> None:
        self.tensor, self._freed = tensor, freed

    def __del__(self) -> None:
        self._freed()


def held(run: TrainingRun, scratch: Path, recompute: Recompute = "none") -> Held:
    """A rank's task: what it holds in an iteration behind one that set up the optimizer."""
    with _computing_again(recompute), split_norms():
        state = set_up(run, scratch)
        iterate(state, _batches(state))
        states = [
            value
            for part in optimizers(state.optimizer)
            for one in part.optimizer.state.values()
            for value in one.values()
            if isinstance(value, torch.Tensor) and value.numel() > 1
        ]
        weights = _size(state.module.parameters())
        gradients = _size(buffer.grad_data for buffer in state.model.buffers)
        fixed = weights + gradients + _size(states)
        saved = SavedTensors(state.module.parameters())
        with saved.counting():
            forward_backward(state, iter(_batches(state)), microbatches=run.microbatches)
        return Held(weights, gradients, _size(states), saved.peak_bytes, fixed + _allocated(state))


def saved_interleaved(run: TrainingRun, virtual_stages: int) -> int:
    """A rank's task: the most that autograd kept at once with so many model chunks a stage."""
    timers = create_timers()
    chunks = interleaved_chunks(run, virtual_stages, timers)
    saved = SavedTensors(weight for chunk in chunks for weight in chunk.parameters())
    with saved.counting():
        pass_through(chunks, run)
    return saved.peak_bytes


def _batches(state: Training) -> list[Any]:
    return [next(state.training) for _ in range(state.run.microbatches)]


def _size(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def _allocated(state: Training) -> int:
    """The most that an iteration allocates beside what is there, by torch's own account."""
    batches = _batches(state)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiled:
        iterate(state, batches)
    events = [
        (one.start_ns(), one.nbytes())
        for one in profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
        if one.name() == "[memory]"
    ]
    sizes = np.array([size for _, size in sorted(events, key=lambda event: event[0])])
    return int(sizes.cumsum().max())


@contextmanager
def _computing_again(recompute: Recompute) -> Iterator[None]:
    """Megatron-Core's recomputation, which restores the state of a CUDA generator."""

    def configured(run: TrainingRun, timers: Timers) -> TransformerConfig:
        config = transformer_config(run, timers)
        if recompute != "none":
            config.recompute_granularity = recompute
            config.recompute_modules = ["core_attn"]
        if recompute == "full":
            config.recompute_method, config.recompute_num_layers = "uniform", 1
        return config

    with (
        mock.patch("repro.train.training.transformer_config", configured),
        mock.patch.object(random, "_get_cuda_rng_state", lambda **_: None),
        mock.patch.object(random, "_set_cuda_rng_state", lambda *_, **__: None),
    ):
        yield
