"""Tests of the GPT-350M report's claims about the distributed optimizer.

Of GPT-350M with the micro batch of Megatron-LM's example script, where no other model is named.
"""

import xarray as xr

from repro.claims.experiments.definitions import FLAT, Quantity, Statement, above_zero, falls, mean
from repro.results.metrics import communication_fraction, phase_time_s
from repro.results.sharded import (
    collective_busbw_GBps,
    collective_times_s,
    tokens_per_s_per_gpu,
)

GPT350M = "gpt350m"
_MODEL, _LARGER, _MICRO_BATCH = "gpt-350m", "gpt-1.3b", 4
# Communication below a tenth of an iteration is called insignificant (claim C129 gives no number).
_INSIGNIFICANT = 0.10
ASSUMPTIONS = {
    GPT350M: f"micro batch {_MICRO_BATCH} and 1024 tokens assumed; the report states neither"
}
# What the testbed cannot answer, and why.
NOT_ON_TESTBED = dict.fromkeys(
    ("C123", "C124", "C125", "C129", "C133"),
    "NVLink is emulated slower than the similarity rule asks for",
)


def _chosen(values: xr.DataArray, model: str = _MODEL) -> xr.DataArray:
    return values.sel(model=model, micro_batch_size=_MICRO_BATCH).squeeze("protocol", drop=True)


def _collectives_ms(gpus: int) -> Quantity:
    """Mean of the reduce-scatter and the all-gather."""
    return Quantity(
        GPT350M,
        lambda r: 1e3 * mean(_chosen(collective_times_s(r)).sel(gpus=gpus)),
        None,
        f"mean of T({gpus}) of reduce-scatter and of all-gather",
    )


def _busbw(gpus: int) -> Quantity:
    return Quantity(
        GPT350M,
        lambda r: mean(_chosen(collective_busbw_GBps(r)).sel(gpus=gpus)),
        None,
        f"(n-1)/n S / T({gpus}), n = {gpus}, S the half-precision weights; mean of "
        f"reduce-scatter and all-gather",
    )


def _share(results: xr.Dataset, model: str = _MODEL) -> xr.DataArray:
    return _chosen(communication_fraction(results), model)


def _insignificant_on_one_node(results: xr.Dataset) -> xr.DataArray:
    return above_zero(_INSIGNIFICANT - _share(results).sel(gpus=[2, 4]))


def _compute_is_flat(results: xr.Dataset) -> xr.DataArray:
    time = _chosen(phase_time_s(results, "forward compute", "backward compute"))
    return above_zero(FLAT - abs(time / time.sel(gpus=1) - 1))


def _larger_model_communicates_more(results: xr.Dataset) -> xr.DataArray:
    return above_zero((_share(results, _LARGER) - _share(results)).sel(gpus=8))


def _flat_on_one_node(results: xr.Dataset) -> xr.DataArray:
    tokens = _chosen(tokens_per_s_per_gpu(results)).sel(gpus=[1, 2, 4])
    return above_zero(FLAT - abs(tokens / tokens.sel(gpus=1) - 1))


def _adam_bytes(results: xr.Dataset) -> xr.DataArray:
    """Adam's moments on all ranks together, per parameter."""
    states = results["adam_state_bytes"].sum("rank", min_count=1) / results["parameters"]
    return mean(_chosen(states).sel(gpus=8))


TESTS: dict[tuple[str, ...], Quantity | Statement] = {
    ("C123", "C124"): _collectives_ms(4),
    ("C125",): _busbw(4),
    ("C126",): _busbw(8),
    ("C127",): _collectives_ms(8),
    ("C128",): Statement(
        GPT350M,
        lambda r: falls(_chosen(collective_times_s(r)), "gpus", (8, 4)),
        "T(8) > T(4) of reduce-scatter and of all-gather",
    ),
    ("C129",): Statement(
        GPT350M, _insignificant_on_one_node, "communication / T < 0.1 on 2 and 4 GPUs"
    ),
    ("C130",): Statement(
        GPT350M, _compute_is_flat, "|T(n) / T(1) - 1| < 0.1 of forward and backward compute"
    ),
    ("C131",): Quantity(
        GPT350M,
        lambda r: 100 * mean(_share(r).sel(gpus=8)),
        50.0,
        "(straggler wait + reduce-scatter + all-gather) / T(8)",
    ),
    ("C132",): Statement(
        GPT350M, _larger_model_communicates_more, "communication / T(8): gpt-1.3b > gpt-350m"
    ),
    ("C133",): Statement(
        GPT350M, _flat_on_one_node, "|tokens/s per GPU on n GPUs / on 1 - 1| < 0.1, n = 2, 4"
    ),
    ("C134",): Statement(
        GPT350M,
        lambda r: falls(_chosen(tokens_per_s_per_gpu(r)), "gpus", (4, 8)),
        "tokens/s per GPU: on 4 GPUs > on 8",
    ),
    ("C135",): Quantity(
        GPT350M, _adam_bytes, None, "bytes of both moments on all ranks / parameters"
    ),
}
