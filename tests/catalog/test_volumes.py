"""Volumes against Megatron-Core's modules and the literature's closed forms."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up import small_run

from repro.catalog.models.papers import Shape, read_models
from repro.catalog.models.trainable import Trainable, trainable_models
from repro.catalog.models.volumes import (
    forward_flops,
    parameters,
    ring_all_reduce_bytes,
    training_flops,
)
from repro.experiments.similarity import derive


@pytest.mark.parametrize("entry", trainable_models().values(), ids=list(trainable_models()))
def test_parameters_are_megatron_cores(
    entry: Trainable, one_rank: None, cuda_means_cpu: None
) -> None:
    from repro.train.megatron.models import build_model, transformer_config
    from repro.train.phases import create_timers

    shape = entry.testbed_size(pipeline=False)
    run = replace(small_run(entry.family, Path("corpus")), shape=shape)
    config = transformer_config(run, create_timers())
    module = build_model(entry.family, shape, config)
    counted = sum(weight.numel() for weight in module.parameters())
    assert parameters(entry.family, shape) == counted


@pytest.mark.parametrize("entry", trainable_models().values(), ids=list(trainable_models()))
def test_forward_flops_are_what_torch_counts(
    entry: Trainable, one_rank: None, cuda_means_cpu: None
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from repro.train.megatron.models import build_model, transformer_config
    from repro.train.megatron.steps import forward_step
    from repro.train.phases import create_timers

    sequences = 3
    shape = entry.testbed_size(pipeline=False)
    run = replace(small_run(entry.family, Path("corpus")), shape=shape)
    config = transformer_config(run, create_timers())
    module = build_model(entry.family, shape, config)
    batch = _random_batch(entry, sequences)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        forward_step(entry.family)(iter([batch]), module)
    expected = sequences * forward_flops(entry.family, shape)
    # BERT's sentence head (one vector per sequence) is left out of the formula.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def _random_batch(entry: Trainable, sequences: int) -> dict[str, torch.Tensor]:
    shape = entry.testbed_size(pipeline=False)
    tokens = torch.randint(0, shape.vocabulary_size, (sequences, shape.sequence_length))
    ones = torch.ones_like(tokens)
    decoder = tokens[:, : shape.decoder_sequence_length or 1]
    return {
        "tokens": tokens,
        "text": tokens,
        "text_enc": tokens,
        "text_dec": decoder,
        "labels": decoder if entry.family == "t5" else tokens,
        "position_ids": torch.arange(shape.sequence_length).expand(sequences, -1),
        "types": torch.zeros_like(tokens),
        "padding_mask": ones,
        "loss_mask": torch.ones_like(decoder) if entry.family == "t5" else ones,
        "enc_mask": ones,
        "dec_mask": torch.ones_like(decoder),
        "is_random": torch.zeros(sequences, dtype=torch.long),
    }


def test_training_flops_are_the_published_formula() -> None:
    # Narayanan et al., SC 2021: 96 B s L h^2 (1 + s/6h + v/16Lh) with recomputation, which adds one
    # forward pass to the three that are counted here: 72 (1 + s/6h + v/12Lh).
    shape = Shape(
        layers=24,
        hidden_size=1024,
        attention_heads=16,
        sequence_length=1024,
        vocabulary_size=50304,
    )
    s, h, layers, vocabulary = 1024, 1024, 24, 50304
    formula = 72 * 4 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert training_flops("gpt", shape, 4) == pytest.approx(formula, rel=1e-12)


def test_ring_moves_twice_the_data_for_many_ranks() -> None:
    assert ring_all_reduce_bytes(100.0, 2) == 100.0
    assert ring_all_reduce_bytes(100.0, 8) == 175.0


@pytest.mark.parametrize("pipeline", [False, True])
def test_similarity_keeps_the_ratio_of_communication_to_computation(pipeline: bool) -> None:
    from repro.catalog.systems.clusters import cluster

    pinnacles = cluster("pinnacles")
    for name, entry in read_models().items():
        similarity = derive(
            name,
            entry,
            pinnacles,
            pipeline=pipeline,
            micro_batch_size=4,
            compute_testbed_s=1.0,
            compute_full_s=0.2,
        )
        testbed_gbps = similarity.rates_gbps(pinnacles, 80.0)["fabric"]
        full = similarity.volume_full_bytes / (80.0 * similarity.compute_full_s)
        small = similarity.volume_testbed_bytes / (testbed_gbps * similarity.compute_testbed_s)
        assert small == pytest.approx(full, rel=1e-12)
