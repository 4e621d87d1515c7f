"""Tests of the claims about pipelines on 2 to 8 GPUs: the model parallelism experiment.

Times are as the paper's timers have them (`repro.results.metrics`).
"""

import xarray as xr

from repro.claims.experiments.definitions import (
    FLAT,
    Quantity,
    Statement,
    above_zero,
    falls,
    is_highest,
    largest,
    mean,
    times_ordered,
)
from repro.results.metrics import (
    Statistic,
    embedding_sync_s,
    forward_receive_s,
    iteration_time_s,
    last_stage_s,
    speed_up,
    timer_fraction,
)

PIPELINES = "model_parallelism"
# What the documents do not state, and answers from the experiment take for it.
ASSUMPTIONS = {PIPELINES: "micro batch 4 assumed; the paper does not state it"}


def _pipeline_gain(protocol: str) -> Quantity:
    """Mean over models, and over the GPU counts that need the network."""
    return Quantity(
        PIPELINES,
        lambda r: mean(speed_up(_between_nodes(iteration_time_s(r)), protocol, "rdma")),
        1.0,
        f"T over {protocol} / T over rdma, mean over models and 4 and 8 GPUs",
    )


def _largest_gain(timer: Statistic, protocol: str, named: str) -> Quantity:
    return Quantity(
        PIPELINES,
        lambda r: largest(speed_up(_between_nodes(timer(r)), protocol, "rdma")),
        1.0,
        f"T over {protocol} / T over rdma of {named}, largest over models and 4 and 8 GPUs",
    )


def _between_nodes(values: xr.DataArray) -> xr.DataArray:
    return values.sel(gpus=[4, 8])


def _pipeline_compute(results: xr.Dataset) -> xr.DataArray:
    return last_stage_s(results, "forward compute", "backward compute")


def _mean_compute(results: xr.Dataset) -> xr.DataArray:
    return _pipeline_compute(results).mean(["model", "protocol"], skipna=False)


def _pipeline_compute_grows(results: xr.Dataset) -> xr.DataArray:
    """By more than what is called flat in data parallelism, from 2 to 8 GPUs."""
    time = _mean_compute(results)
    return above_zero(time.sel(gpus=8) / time.sel(gpus=2) - (1 + FLAT))


def _four_terms_dominate(results: xr.Dataset) -> xr.DataArray:
    four = _pipeline_compute(results) + forward_receive_s(results) + embedding_sync_s(results)
    return above_zero(four - 0.5 * iteration_time_s(results))


def _t5_waits_most(results: xr.Dataset) -> xr.DataArray:
    share = timer_fraction(results).sel(gpus=8).mean("protocol", skipna=False)
    return is_highest(share, "t5-large")


TESTS: dict[tuple[str, ...], Quantity | Statement] = {
    ("C034", "C118"): _pipeline_gain("ipoib"),
    ("C035", "C119"): _pipeline_gain("tcp"),
    ("C041",): Quantity(
        PIPELINES,
        lambda r: 100 * largest(timer_fraction(r)),
        50.0,
        "(forward receive + embedding sync) / T, largest over models, protocols and GPUs",
    ),
    ("C095",): Statement(
        PIPELINES,
        _four_terms_dominate,
        "forward compute + backward compute + forward receive + embedding sync > T / 2, everywhere",
    ),
    ("C096", "C103"): Statement(
        PIPELINES,
        lambda r: falls(_mean_compute(r), "gpus", (8, 4, 2)),
        "T(8) > T(4) > T(2) of forward and backward compute, mean over models and protocols",
    ),
    ("C097",): _largest_gain(forward_receive_s, "tcp", "forward receive"),
    ("C098",): _largest_gain(embedding_sync_s, "tcp", "embedding sync"),
    ("C099",): _largest_gain(forward_receive_s, "ipoib", "forward receive"),
    ("C100",): _largest_gain(embedding_sync_s, "ipoib", "embedding sync"),
    ("C101",): Statement(
        PIPELINES,
        _t5_waits_most,
        "(forward receive + embedding sync) / T on 8 GPUs, mean over protocols: t5-large > "
        "each other model",
    ),
    ("C102",): Statement(PIPELINES, times_ordered, "T(8), mean over models: tcp > ipoib > rdma"),
    ("C115",): Statement(
        PIPELINES,
        _pipeline_compute_grows,
        "T(8) / T(2) > 1.1 of forward and backward compute, mean over models and protocols",
    ),
}
