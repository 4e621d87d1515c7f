"""Small models for pipelines, with weights that depend on a parameter's name in the whole model.

So every way of splitting a model over ranks starts from the same model.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from repro.catalog.models.papers import Family, Shape
from repro.observe.interleaving import InterleavedRuns
from repro.observe.messages import MessageEnd
from repro.train.records import RankRecord, TrainingRun
from repro.train.run import forward_backward, train
from repro.train.training import Training, set_up

SEQUENCE, DECODER_SEQUENCE, HIDDEN = 32, 16, 32
MICRO_BATCH = 2
MICROBATCHES = 4
"""Forward passes of all replicas together in one iteration."""

# Eight stages have a layer each.
_LAYERS: dict[Family, int] = {"gpt": 8, "bert": 8, "t5": 4}


def staged_run(family: Family, corpus: Path, *, stages: int = 1, replicas: int = 1) -> TrainingRun:
    """One recorded iteration of a tiny model that eight stages can share."""
    return TrainingRun(
        family=family,
        shape=Shape(
            layers=_LAYERS[family],
            hidden_size=HIDDEN,
            attention_heads=2,
            sequence_length=SEQUENCE,
            decoder_sequence_length=DECODER_SEQUENCE if family == "t5" else None,
            vocabulary_size=1024,
        ),
        precision="fp32",
        micro_batch_size=MICRO_BATCH,
        microbatches=MICROBATCHES // replicas,
        warmup=1,
        iterations=1,
        save_every=0,
        validate_every=0,
        validation_batches=1,
        corpus=corpus,
        split="90,10",
        pipeline_parallel=stages,
    )


def named_weights(state: Training) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """This rank's parameters under their names in the whole model."""
    from megatron.core import parallel_state

    run, stage = state.run, parallel_state.get_pipeline_model_parallel_rank()
    stacks = 2 if run.family == "t5" and run.pipeline_parallel > 1 else 1
    before = stage * stacks * run.shape.layers // run.pipeline_parallel
    for name, weight in state.module.named_parameters():
        layer = re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.*)", name)
        if layer is not None:
            stack, number, rest = layer.groups()
            first = before - (run.shape.layers if stacks == 2 and stack == "decoder" else 0)
            yield f"{stack}.layers.{first + int(number)}.{rest}", weight
        elif name.endswith("output_layer.weight"):
            yield "embedding.word_embeddings.weight", weight
        else:
            yield name, weight


def initialise(state: Training) -> None:
    """Give every parameter the values that belong to its name."""
    for name, weight in named_weights(state):
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        norm = "norm" in name and name.endswith("weight")
        with torch.no_grad():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator) + norm)


@dataclass(frozen=True)
class Trained:
    """What a rank saw: gradients are those of the first iteration, by name in the whole model."""

    losses: list[float]
    gradient_norms: list[float]
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    messages: tuple[MessageEnd, ...]


def set_up_staged(run: TrainingRun, scratch: Path, cores: float | None = None) -> Training:
    """`set_up`, with the weights of `initialise`."""
    state = set_up(run, scratch, cores)
    initialise(state)
    return state


def train_recorded(run: TrainingRun, scratch: Path) -> RankRecord:
    """A rank's task: a whole run from the weights of `initialise`."""
    with mock.patch("repro.train.run.set_up", set_up_staged):
        return train(run, scratch)[0]


def train_in_turns(run: TrainingRun, scratch: Path, *microbatches: int) -> tuple[RankRecord, ...]:
    """A rank's task: a whole run of each number of micro batches, in turns."""
    return train(run, scratch, turns=InterleavedRuns(len(microbatches)), microbatches=microbatches)


def train_staged(run: TrainingRun, scratch: Path, iterations: int) -> Trained:
    """A rank's task: some iterations from the weights of `initialise`."""
    state = set_up_staged(run, scratch)
    losses, norms, messages = [], [], []
    gradients: dict[str, np.ndarray] = {}
    for iteration in range(iterations):
        state.model.zero_grad_buffer()
        state.optimizer.zero_grad()
        losses.append(forward_backward(state, state.training, microbatches=run.microbatches))
        if not gradients:
            gradients = {
                name: weight.main_grad.numpy().copy() for name, weight in named_weights(state)
            }
        norms.append(float(state.optimizer.step()[1]))
        if state.communicator is not None:
            messages += state.communicator.take(iteration)
    weights = {name: weight.detach().numpy().copy() for name, weight in named_weights(state)}
    return Trained(losses, norms, gradients, weights, tuple(messages))
