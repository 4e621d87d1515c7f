"""Claims about growing batches, in data parallelism and in pipelines, and about cluster B.

Configurations that ran out of memory have no time.
"""

from functools import partial

import numpy as np
import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import protocol
from repro.claims.quantities import (
    Answers,
    Prediction,
    Quantity,
    Statement,
    above_zero,
    mean,
    smallest,
)
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Parameters
from repro.predict.step.quantities import quantities
from repro.predict.workload import Array, Plan, workload
from repro.results.metrics import communication_fraction, timer_fraction

DATA_BATCHES, PIPELINE_BATCHES = "data_batches", "pipeline_batches"
CLUSTER_B = "cluster_b"
_MODELS = ("gpt2-medium", "gpt2-large", "bert-large", "t5-large")


def _data_fraction(results: xr.Dataset) -> xr.DataArray:
    return communication_fraction(results).squeeze(["protocol", "gpus"], drop=True)


def _percent_at_limit(results: xr.Dataset) -> xr.DataArray:
    """Compute communication's smallest part in percent, of all models but BERT-Large."""
    return 100 * smallest(_data_fraction(results).drop_sel(model="bert-large"))


def _keeps_falling(values: xr.DataArray, dim: str) -> xr.DataArray:
    """Test whether each value along `dim` is less than the one before, where both exist."""
    falling = -values.diff(dim)
    return above_zero(falling.fillna(np.inf))


def _largest_batch(results: xr.Dataset) -> xr.DataArray:
    fits = results["out_of_memory"].squeeze(["protocol", "gpus"], drop=True) == 0
    return (fits * fits["global_batch_size"]).max("global_batch_size")


def _bert_fits_most(results: xr.Dataset) -> xr.DataArray:
    largest = _largest_batch(results)
    others = largest.drop_sel(model="bert-large").max("model")
    return above_zero(largest.sel(model="bert-large", drop=True) - 2 * others)


def _pipeline_fraction(results: xr.Dataset) -> xr.DataArray:
    return timer_fraction(results).squeeze("protocol", drop=True)


def _gpt2_large_is_out_of_memory(results: xr.Dataset) -> xr.DataArray:
    out_of_memory = results["out_of_memory"]
    return above_zero(out_of_memory.sel(model="gpt2-large", gpus=8, global_batch_size=128))


def _pipeline_percent(batch: int, results: xr.Dataset) -> xr.DataArray:
    return 100 * smallest(_pipeline_fraction(results).sel(global_batch_size=batch))


# Predictions of GPT-2-Large on 16 GPUs of cluster B.


def _predicted_fraction(name: str, plan: Plan, where: Machine, parameters: Parameters) -> Array:
    """Predict the communication fraction of data parallelism, as the papers' timer has it."""
    entry = model(name)
    flat, _ = workload(entry.family, entry.full, plan).flat()
    run = quantities(flat, where, parameters)
    return np.asarray((run["gradient_sync"] + run["straggler_wait"]) / run["iteration_time_s"])


def _machine_a(parameters: Parameters) -> Machine:
    return machine(cluster("pinnacles"), parameters, protocol("rdma"))


def _predicted_percent(where: Machine, gpus: int, parameters: Parameters) -> Array:
    """Predict percent with micro batch 12, the largest that the paper found."""
    plan = Plan(global_batch_size=12 * gpus, micro_batch_size=12, data_parallel=gpus)
    return 100 * _predicted_fraction("gpt2-large", plan, where, parameters)


def _percent_on_b(parameters: Parameters) -> Array:
    return _predicted_percent(machine(cluster("cluster-b"), parameters), 16, parameters)


def _same_fraction_on_b(parameters: Parameters) -> Array:
    on_a = _predicted_percent(_machine_a(parameters), 8, parameters)
    return np.asarray(np.abs(_percent_on_b(parameters) / on_a - 1) < 0.1)


def _communication_predominates(parameters: Parameters) -> Array:
    """Test for more than half of the iteration, from 2 GPUs of cluster A to 16 of cluster B."""
    gpus = np.array([2, 4, 8])
    plan = Plan(global_batch_size=4 * gpus, micro_batch_size=4, data_parallel=gpus)
    more = [(_percent_on_b(parameters) > 50).all(axis=-1)]
    for name in _MODELS:
        fraction = _predicted_fraction(name, plan, _machine_a(parameters), parameters)
        more.append((fraction > 0.5).all(axis=-1))
    return np.asarray(np.stack(np.broadcast_arrays(*more)).all(axis=0))


ANSWERS: Answers = {
    "C028 C104": Quantity(DATA_BATCHES, _percent_at_limit),
    "C029 C105": Statement(
        DATA_BATCHES, lambda r: _keeps_falling(_data_fraction(r), "global_batch_size")
    ),
    "C106": Statement(DATA_BATCHES, _bert_fits_most),
    "C112": Quantity(DATA_BATCHES, lambda r: _largest_batch(r).sel(model="gpt2-large")),
    "C107": Statement(
        PIPELINE_BATCHES, lambda r: _keeps_falling(-_pipeline_fraction(r), "global_batch_size")
    ),
    "C108": Statement(PIPELINE_BATCHES, lambda r: _keeps_falling(_pipeline_fraction(r), "gpus")),
    "C109": Quantity(PIPELINE_BATCHES, partial(_pipeline_percent, 64)),
    "C110": Quantity(PIPELINE_BATCHES, partial(_pipeline_percent, 128)),
    "C111": Statement(PIPELINE_BATCHES, _gpt2_large_is_out_of_memory),
    "C043 C113": Quantity(CLUSTER_B, lambda r: 100 * mean(communication_fraction(r).sel(gpus=16))),
    "C114": Prediction("", _same_fraction_on_b),
    "C120": Prediction("", _communication_predominates),
}
