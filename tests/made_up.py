"""What tests run on: a made-up experiment with known answers, and small training runs."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from repro.catalog.models.papers import Family
from repro.catalog.models.trainable import trainable
from repro.catalog.phases import COMPUTING, P2P_TIMERS, PHASES
from repro.experiments.similarity import Similarity
from repro.experiments.this_machine import emulated_gpu
from repro.launch.request import Coordinates
from repro.observe.messages import MessageEnd
from repro.observe.nic import NicSeries
from repro.results.merging import merge
from repro.results.outcome import Outcome
from repro.results.schema import coordinates, placed, training_dataset
from repro.testbed.speed import cores_per_rank
from repro.testbed.verify import LinkCheck
from repro.train.records import RankRecord, Span, TrainingRun

# Every model computes for 0.1 s.
_RATES = {"rdma": 100.0, "ipoib": 25.0, "tcp": 10.0}
_ITERATIONS = 6
TIME_SCALE = 2.0


def made_up_computing(
    models: Sequence[str], times_s: ArrayLike, peaks_bytes: ArrayLike
) -> xr.Dataset:
    """What `repro compute` measures: the same times (size, iteration) and peaks (size,) of every
    model; the optimizer's step is a fifth of the time."""
    over = {"layout": 2, "model": len(models)}
    passes = xr.DataArray(times_s, dims=["micro_batch_size", "iteration"]) * xr.DataArray(
        [0.3, 0.5, 0.2], dims=["phase"]
    )
    peaks = xr.DataArray(peaks_bytes, dims=["micro_batch_size"]).astype(float)
    return xr.Dataset(
        {
            "pass_time_s": passes.expand_dims(over).copy(),
            "peak_memory_bytes": peaks.expand_dims(over).copy(),
        },
        coords={
            "layout": ["data", "pipeline"],
            "model": list(models),
            "micro_batch_size": [1, 4, 16],
            "phase": list(COMPUTING),
        },
        attrs={"emulated_gpu": json.dumps(emulated_gpu(cores_per_rank(8)))},
    )


def made_up_records(where: Coordinates) -> tuple[RankRecord, ...]:
    """Ranks whose gradient sync is 2(n-1)/n x 10 Gbit over the protocol's rate."""
    gpus = int(where["gpus"])
    sync = 0.02 if gpus == 2 else 2 * (gpus - 1) / gpus * 10 / _RATES[str(where["protocol"])]
    times = {
        "forward compute": 0.03,
        "backward compute": 0.06,
        "gradient sync": sync,
        "optimizer": 0.01,
    }
    iteration = sum(times.values())
    starts = tuple(10.0 + number * iteration for number in range(_ITERATIONS))
    return tuple(
        RankRecord(
            rank=rank,
            start_s=starts,
            iteration_time_s=(iteration,) * _ITERATIONS,
            phase_time_s={phase: (times.get(phase, 0.0),) * _ITERATIONS for phase in PHASES},
            loss=tuple(7.0 - 0.1 * number for number in range(_ITERATIONS)),
            validation_loss=(),
            spans=(Span("validation", starts[2], starts[2] + 0.01),),
            parameters=10,
            gradient_bytes=40,
            peak_memory_bytes=1000,
            contention_fraction=(0.0,) * _ITERATIONS,
        )
        for rank in range(gpus)
    )


def configuration_dataset(where: Coordinates, outcome: Outcome, *scales: float) -> xr.Dataset:
    """Return the dataset of an outcome at its coordinates."""
    return placed(training_dataset(outcome, *scales), where)


def made_up_configuration(where: Coordinates) -> xr.Dataset:
    """One configuration of these ranks, two on a node."""
    records = made_up_records(where)
    starts, iteration = records[0].start_s, records[0].iteration_time_s[0]
    clock = np.arange(9.9, starts[-1] + iteration + 0.1, 0.02)
    nodes = max(1, int(where["gpus"]) // 2)
    # Every NIC receives 0.5 Gbit in every iteration, evenly.
    received = np.clip((clock - 10.0) / iteration, 0, _ITERATIONS) * 0.5e9 / 8
    series = NicSeries(
        time_s=clock.tolist(),
        rx_bytes=[(int(value),) * nodes for value in received],
        tx_bytes=[(int(value),) * nodes for value in received],
    )
    links = tuple(LinkCheck(level, 1.0, 1.0, (0.99, 1.01)) for level in ("node", "fabric"))
    similarity = Similarity(str(where["model"]), False, 4, 0.3, 0.05, 0.1, 400, 40)
    assert similarity.time_scale == TIME_SCALE
    outcome = Outcome(records, series, links, 0.0)
    return configuration_dataset(where, outcome, similarity.time_scale, similarity.rate_scale)


def made_up_experiment() -> xr.Dataset:
    """All configurations: four models, three protocols, 2, 4 and 8 GPUs."""
    return merge(
        [
            made_up_configuration(coordinates(model, protocol, gpus))
            for model in ("gpt2-medium", "gpt2-large", "bert-large", "t5-large")
            for protocol in _RATES
            for gpus in (2, 4, 8)
        ]
    )


_SMALL: dict[Family, str] = {"gpt": "gpt2-medium", "bert": "bert-large", "t5": "t5-large"}


def small_run(
    family: Family,
    corpus: Path,
    *,
    micro_batch_size: int = 2,
    microbatches: int = 1,
    iterations: int = 1,
    every: int = 0,
    name: str = "",
) -> TrainingRun:
    """A run of a family's testbed model, or a named one's, that saves and validates `every` so many
    iterations."""
    return TrainingRun(
        family=family,
        shape=trainable(name or _SMALL[family]).testbed_size(pipeline=False),
        precision="fp32",
        micro_batch_size=micro_batch_size,
        microbatches=microbatches,
        warmup=1,
        iterations=iterations,
        save_every=every,
        validate_every=every,
        validation_batches=1,
        corpus=corpus,
        split="90,10",
    )


STAGE_S, HOP_S, EMBEDDING_S = 0.10, 0.02, 0.03


def made_up_pipeline(where: Coordinates) -> xr.Dataset:
    """Two stages, one micro batch: the forward pass, a message, both of the last stage's passes, a
    message back and the drain. Times of the machine are twice those at full scale."""
    iteration = 4 * STAGE_S + 2 * HOP_S + EMBEDDING_S
    ends: dict[int, list[MessageEnd]] = {0: [], 1: []}
    for number in range(_ITERATIONS):
        start = 10.0 + number * iteration
        forward, backward = start + STAGE_S, start + 3 * STAGE_S + HOP_S
        arrived, returned = forward + HOP_S, backward + HOP_S
        ends[0] += [
            MessageEnd(number, "forward-send", 0, "forward", 1, 800, True, forward, arrived),
            MessageEnd(number, "backward-recv", 1, "backward", 1, 800, False, arrived, returned),
        ]
        ends[1] += [
            MessageEnd(number, "forward-recv", 0, "forward", 0, 800, False, start, arrived),
            MessageEnd(number, "backward-send", 1, "backward", 0, 800, True, backward, returned),
        ]
    calls = {
        0: {"forward-send": HOP_S, "backward-recv": 2 * STAGE_S + HOP_S},
        1: {"forward-recv": STAGE_S + HOP_S, "backward-send": HOP_S},
    }
    phases = {
        0: {"send": HOP_S, "backward receive": 2 * STAGE_S + HOP_S},
        1: {"forward receive": STAGE_S + HOP_S, "send": HOP_S, "straggler wait": STAGE_S},
    }
    records = tuple(
        RankRecord(
            rank=rank,
            start_s=tuple(10.0 + number * iteration for number in range(_ITERATIONS)),
            iteration_time_s=(iteration,) * _ITERATIONS,
            phase_time_s={
                phase: (
                    {
                        "forward compute": STAGE_S,
                        "backward compute": STAGE_S,
                        "embedding sync": EMBEDDING_S,
                        **phases[rank],
                    }.get(phase, 0.0),
                )
                * _ITERATIONS
                for phase in PHASES
            },
            loss=(7.0 if rank else float("nan"),) * _ITERATIONS,
            validation_loss=(),
            spans=(),
            parameters=10,
            gradient_bytes=40,
            peak_memory_bytes=1000,
            contention_fraction=(0.0,) * _ITERATIONS,
            timer_time_s={
                timer: (calls[rank].get(timer, 0.0),) * _ITERATIONS for timer in P2P_TIMERS
            },
            messages=tuple(ends[rank]),
            pipeline_rank=rank,
        )
        for rank in (0, 1)
    )
    clock = np.arange(9.9, 10.0 + _ITERATIONS * iteration + 0.1, 0.02)
    still = [(0,)] * len(clock)
    series = NicSeries(time_s=clock.tolist(), rx_bytes=list(still), tx_bytes=list(still))
    similarity = Similarity(str(where["model"]), True, 4, 0.3, 0.05, 0.1, 400, 40)
    links = (LinkCheck("node", 1.0, 1.0, (1.0,)),)
    outcome = Outcome(records, series, links, 0.0)
    return configuration_dataset(where, outcome, similarity.time_scale, similarity.rate_scale)
