"""Tests of the claims about growing batches, in data parallelism and in pipelines, and cluster B.

Where memory was not enough there is no time, and so no share.
"""

import numpy as np
import xarray as xr

from repro.claims.experiments.definitions import Quantity, Statement, above_zero, mean, smallest
from repro.results.metrics import communication_fraction, timer_fraction

DATA_BATCHES, PIPELINE_BATCHES = "data_batches", "pipeline_batches"
CLUSTER_B = "cluster_b"
# What the documents do not state, and answers from an experiment take for it.
ASSUMPTIONS = {
    DATA_BATCHES: "RDMA and nothing recomputed assumed; the paper does not state them",
    PIPELINE_BATCHES: "RDMA, micro batch 4 and nothing recomputed assumed",
    CLUSTER_B: "one 100 Gbit/s port a node assumed",
}


def _data_share(results: xr.Dataset) -> xr.DataArray:
    return communication_fraction(results).squeeze(["protocol", "gpus"], drop=True)


def _share_at_limit(results: xr.Dataset) -> xr.DataArray:
    """The smallest share before memory runs out, of all models but BERT-Large."""
    return 100 * smallest(_data_share(results).drop_sel(model="bert-large"))


def _keeps_falling(values: xr.DataArray, dim: str) -> xr.DataArray:
    """From each value along `dim` to the next, where there are both."""
    falling = -values.diff(dim)
    return above_zero(falling.fillna(np.inf))


def _largest_batch(results: xr.Dataset) -> xr.DataArray:
    fits = results["out_of_memory"].squeeze(["protocol", "gpus"], drop=True) == 0
    return (fits * fits["global_batch_size"]).max("global_batch_size")


def _bert_fits_most(results: xr.Dataset) -> xr.DataArray:
    largest = _largest_batch(results)
    others = largest.drop_sel(model="bert-large").max("model")
    return above_zero(largest.sel(model="bert-large", drop=True) - 2 * others)


def _pipeline_share(results: xr.Dataset) -> xr.DataArray:
    return timer_fraction(results).squeeze("protocol", drop=True)


def _gpt2_large_is_out_of_memory(results: xr.Dataset) -> xr.DataArray:
    cell = {"model": "gpt2-large", "gpus": 8, "global_batch_size": 128}
    return above_zero(results["out_of_memory"].sel(cell))


def _pipeline_floor(batch: int) -> Quantity:
    return Quantity(
        PIPELINE_BATCHES,
        lambda r: 100 * smallest(_pipeline_share(r).sel(global_batch_size=batch)),
        50.0,
        f"(forward receive + embedding sync) / T at batch {batch}, smallest over models and GPUs",
    )


TESTS: dict[tuple[str, ...], Quantity | Statement] = {
    ("C028", "C104"): Quantity(
        DATA_BATCHES,
        _share_at_limit,
        50.0,
        "(straggler wait + gradient sync) / T, smallest over batches and models but bert-large",
    ),
    ("C029", "C105"): Statement(
        DATA_BATCHES,
        lambda r: _keeps_falling(_data_share(r), "global_batch_size"),
        "(straggler wait + gradient sync) / T falls from each batch to the next larger",
    ),
    ("C106",): Statement(
        DATA_BATCHES, _bert_fits_most, "largest batch of bert-large > 2 x that of each other model"
    ),
    ("C112",): Quantity(
        DATA_BATCHES,
        lambda r: _largest_batch(r).sel(model="gpt2-large"),
        None,
        "largest batch of gpt2-large that fits into memory",
    ),
    ("C107",): Statement(
        PIPELINE_BATCHES,
        lambda r: _keeps_falling(-_pipeline_share(r), "global_batch_size"),
        "(forward receive + embedding sync) / T rises from each batch to the next larger",
    ),
    ("C108",): Statement(
        PIPELINE_BATCHES,
        lambda r: _keeps_falling(_pipeline_share(r), "gpus"),
        "(forward receive + embedding sync) / T falls from 2 to 4 to 8 GPUs at equal batch",
    ),
    ("C109",): _pipeline_floor(64),
    ("C110",): _pipeline_floor(128),
    ("C111",): Statement(
        PIPELINE_BATCHES,
        _gpt2_large_is_out_of_memory,
        "gpt2-large is out of memory at batch 128 on 8 GPUs",
    ),
    ("C043", "C113"): Quantity(
        CLUSTER_B,
        lambda r: 100 * mean(communication_fraction(r).sel(gpus=16)),
        50.0,
        "(straggler wait + gradient sync) / T(16)",
    ),
}
