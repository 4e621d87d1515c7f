"""What tests run on: a made-up experiment with known answers, and small training runs."""

from pathlib import Path

import numpy as np
import xarray as xr

from repro.catalog.models import Family, model
from repro.launch.messages import Outcome
from repro.observe.nic import NicSeries
from repro.results.merging import merge
from repro.results.schema import Cell, configuration_dataset
from repro.testbed.similarity import Similarity
from repro.testbed.verify import LinkCheck
from repro.train.records import PHASES, RankRecord, Span, TrainingRun

# Every model computes for 0.1 s.
_RATES = {"rdma": 100.0, "ipoib": 25.0, "tcp": 10.0}
_ITERATIONS = 6
TIME_SCALE = 2.0


def made_up_configuration(cell: Cell) -> xr.Dataset:
    """One configuration whose gradient sync is 2(n-1)/n x 10 Gbit over the protocol's rate."""
    gpus = cell.gpus
    sync = 0.02 if gpus == 2 else 2 * (gpus - 1) / gpus * 10 / _RATES[cell.protocol]
    times = {
        "forward compute": 0.03,
        "backward compute": 0.06,
        "gradient sync": sync,
        "optimizer": 0.01,
    }
    iteration = sum(times.values())
    starts = tuple(10.0 + number * iteration for number in range(_ITERATIONS))
    records = tuple(
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
        )
        for rank in range(gpus)
    )
    clock = np.arange(9.9, starts[-1] + iteration + 0.1, 0.02)
    nodes = max(1, gpus // 2)
    # Every NIC receives 0.5 Gbit in every iteration, evenly.
    received = np.clip((clock - 10.0) / iteration, 0, _ITERATIONS) * 0.5e9 / 8
    series = NicSeries(
        time_s=clock.tolist(),
        rx_bytes=[(int(value),) * nodes for value in received],
        tx_bytes=[(int(value),) * nodes for value in received],
    )
    links = tuple(LinkCheck(level, 1.0, (0.99, 1.01)) for level in ("node", "fabric"))
    similarity = Similarity(cell.model, False, 4, 0.3, 0.05, 0.1, 400, 40)
    assert similarity.time_scale == TIME_SCALE
    return configuration_dataset("testbed", cell, similarity, Outcome(records, series, links, 0.0))


def made_up_experiment() -> xr.Dataset:
    """All configurations: four models, three protocols, 2, 4 and 8 GPUs."""
    return merge(
        [
            made_up_configuration(Cell(model, protocol, gpus))
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
) -> TrainingRun:
    """A run of a family's testbed model that saves and validates `every` so many iterations."""
    return TrainingRun(
        family=family,
        shape=model(_SMALL[family]).testbed,
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
