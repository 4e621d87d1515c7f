"""What one GPU would measure if the performance model with `TRUTH` were right."""

import json

import numpy as np
import xarray as xr
from made_up import configuration_dataset

from repro.catalog.models.papers import model
from repro.catalog.phases import PHASES
from repro.catalog.systems.clusters import cluster
from repro.launch.request import Coordinates
from repro.observe.nic import NicSeries
from repro.predict.calibration.one_gpu import as_run_bytes
from repro.predict.network.machine import machine
from repro.predict.parameters import calibration
from repro.predict.step.iteration import predict_phases
from repro.predict.workload import Plan, workload
from repro.results.merging import merge
from repro.results.outcome import Outcome
from repro.results.schema import coordinates, out_of_memory_dataset, placed
from repro.train.records import RankRecord

CLUSTER = cluster("dgx-h200")
# Not far beyond what is held possible of a GPU beforehand.
TRUTH = calibration(CLUSTER.calibration).parameters.model_copy(
    update={
        "gemm_efficiency": 0.75,
        "logits_gemm_efficiency_alone": 0.5,
        "memory_efficiency": 0.8,
        "host_layer_s": 5e-4,
        "kernel_s": 4e-6,
    }
)
NOISE = 0.01
_ITERATIONS = 8
_BATCHES = {
    "gpt2-medium": (1, 2, 4, 8, 16, 32),
    "bert-large": (1, 2, 4, 8, 16, 32),
    "t5-large": (1, 2, 4, 8, 16, 32, 64),
    "gpt2-large": (1, 2, 4, 8, 16),
}
# What a model had no memory for.
_FULL = {"gpt2-medium": (64, 128), "bert-large": (64, 128), "t5-large": (128,), "gpt2-large": (32,)}


def made_up_measurements() -> xr.Dataset:
    """A dataset as source `cluster` has it, with iterations that scatter by `NOISE`.

    Measured memory is 5 % above the memory model's.
    """
    generator = np.random.default_rng(2)
    parts = [
        _configuration(name, size, generator) for name, sizes in _BATCHES.items() for size in sizes
    ]
    parts += [
        placed(out_of_memory_dataset(), _where(name, size))
        for name, sizes in _FULL.items()
        for size in sizes
    ]
    ran_on = [{"device": "NVIDIA H200", "configuration": str(number)} for number in range(2)]
    return merge(parts).assign_attrs(
        ran_on=json.dumps(ran_on),
        not_run=json.dumps({}),
        provenance=json.dumps([{"commit": "made up"}]),
    )


def _where(name: str, size: int) -> Coordinates:
    return coordinates(name, "tcp", 1, "micro_batch_size", size, "cluster")


def _configuration(name: str, size: int, generator: np.random.Generator) -> xr.Dataset:
    entry = model(name)
    plan = Plan(global_batch_size=size, micro_batch_size=size)
    run, _ = workload(entry.family, entry.full, plan).flat()
    predicted = predict_phases(run, machine(CLUSTER, TRUTH), TRUTH)
    times = {
        "forward compute": predicted.forward_compute.item(),
        "backward compute": predicted.backward_compute.item(),
        "optimizer": predicted.optimizer.item(),
        "other": predicted.other.item(),
    }
    scatter = {phase: generator.normal(1, NOISE, _ITERATIONS) for phase in times}
    phases = {
        phase: tuple(times[phase] * scatter[phase]) if phase in times else (0.0,) * _ITERATIONS
        for phase in PHASES
    }
    durations = tuple(np.sum(list(phases.values()), axis=0).tolist())
    starts = tuple((10.0 + np.cumsum([0.0, *durations[:-1]])).tolist())
    record = RankRecord(
        rank=0,
        start_s=starts,
        iteration_time_s=durations,
        phase_time_s=phases,
        loss=(7.0,) * _ITERATIONS,
        validation_loss=(),
        spans=(),
        parameters=10,
        gradient_bytes=20,
        peak_memory_bytes=int(1.05 * as_run_bytes(run).item()),
        contention_fraction=(0.0,) * _ITERATIONS,
    )
    # An adapter of the machine, which carries nothing.
    series = NicSeries(time_s=[9.0, 10.5, 1e4], rx_bytes=[(0,)] * 3, tx_bytes=[(0,)] * 3)
    return configuration_dataset(_where(name, size), Outcome((record,), series, (), 0.0))
