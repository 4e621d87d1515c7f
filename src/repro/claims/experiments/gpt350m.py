"""Claims of the GPT-350M report: the distributed optimizer on Big Red 200, and NCCL's tables.

Tests are on GPT-350M with the micro batch of Megatron-LM's example script, unless they name another
model. Predictions are arithmetic on what the report states, and what NCCL does on other networks.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, gradient_bytes
from repro.claims.quantities import (
    FLAT,
    MEASURED,
    Answers,
    Prediction,
    Quantity,
    Statement,
    above_zero,
    falls,
    mean,
)
from repro.collectives.definitions import busbw_GBps
from repro.paths import PUBLISHED
from repro.predict.memory import MIXED
from repro.predict.network.links import predict_collective
from repro.predict.parameters import Parameters
from repro.predict.workload import Array
from repro.results.metrics import communication_fraction, phase_time_s
from repro.results.sharded import (
    collective_busbw_GBps,
    collective_times_s,
    tokens_per_s_per_gpu,
)

GPT350M = "gpt350m"
_MODEL, _LARGER, _MICRO_BATCH = "gpt-350m", "gpt-1.3b", 4
# The report prints four digits.
_ROUNDING = 5e-4
# Communication below a tenth of an iteration is insignificant (claim C129 gives no number).
_INSIGNIFICANT = 0.10


def _chosen(values: xr.DataArray, model: str = _MODEL) -> xr.DataArray:
    return values.sel(model=model, micro_batch_size=_MICRO_BATCH).squeeze("protocol", drop=True)


def _collectives_ms(gpus: int, results: xr.Dataset) -> xr.DataArray:
    return 1e3 * mean(_chosen(collective_times_s(results)).sel(gpus=gpus))


def _busbw(gpus: int, results: xr.Dataset) -> xr.DataArray:
    return mean(_chosen(collective_busbw_GBps(results)).sel(gpus=gpus))


def _fraction(results: xr.Dataset, model: str = _MODEL) -> xr.DataArray:
    return _chosen(communication_fraction(results), model)


def _insignificant_on_one_node(results: xr.Dataset) -> xr.DataArray:
    return above_zero(_INSIGNIFICANT - _fraction(results).sel(gpus=[2, 4]))


def _compute_is_flat(results: xr.Dataset) -> xr.DataArray:
    time = _chosen(phase_time_s(results, "forward compute", "backward compute"))
    return above_zero(FLAT - abs(time / time.sel(gpus=1) - 1))


def _larger_model_communicates_more(results: xr.Dataset) -> xr.DataArray:
    return above_zero((_fraction(results, _LARGER) - _fraction(results)).sel(gpus=8))


def _flat_on_one_node(results: xr.Dataset) -> xr.DataArray:
    tokens = _chosen(tokens_per_s_per_gpu(results)).sel(gpus=[1, 2, 4])
    return above_zero(FLAT - abs(tokens / tokens.sel(gpus=1) - 1))


def _adam_bytes(results: xr.Dataset) -> xr.DataArray:
    """Compute bytes of Adam's moments on all ranks together, per parameter."""
    states = results["adam_state_bytes"].sum("rank", min_count=1) / results["parameters"]
    return mean(_chosen(states).sel(gpus=8))


def _gradient_megabytes(_: Parameters) -> Array:
    entry = model("gpt-350m")
    return np.array([gradient_bytes(entry.family, entry.full, FULL_ELEMENT_BYTES) / 1e6])


def _predicted_adam_bytes(_: Parameters) -> Array:
    return np.array([float(MIXED.moments)])


def _table_is_consistent(_: Parameters) -> Array:
    """Test whether the printed bus bandwidths are those of the printed times."""
    rows = pd.read_csv(PUBLISHED / "nccl_bigred200.csv")
    same = []
    for side in ("inter", "intra"):
        seconds = rows[f"{side}_time_us"] * 1e-6
        computed = busbw_GBps("all_reduce", rows[f"{side}_n"], rows.size_bytes, seconds)
        printed = rows[f"{side}_busbw_GBps_reported"]
        same.append(np.allclose(computed, printed, rtol=_ROUNDING))
    return np.array([all(same)])


def _busbw_elsewhere(gpus: int, nodes: int, network: str, at: int) -> Callable[[Parameters], Array]:
    """Return a prediction for an all-reduce of the table's first or last size on other networks."""
    size = pd.read_csv(PUBLISHED / "nccl_bigred200.csv").size_bytes.iloc[[at]]
    row = pd.DataFrame(
        {
            **{"gpu": "A100", "network": network, "collective": "all_reduce"},
            **{"ranks": gpus, "nodes": nodes, "size_bytes": size},
        }
    )

    def busbw(parameters: Parameters) -> Array:
        found = predict_collective(row)
        error = np.exp(-found.half_width.to_numpy() * parameters.network_error)
        return busbw_GBps("all_reduce", gpus, size, found.time_s) * error

    return busbw


def _peak_pflops(_: Parameters) -> Array:
    """Compute the peak in double precision.

    A core has 16 operations per cycle (two 256-bit FMA units), an A100 9.7e12 per second.
    """
    cpus = 640 * 2 * 64 * 16 * 2.25e9 + 64 * 64 * 16 * 2.0e9
    return np.array([(cpus + 64 * 4 * 9.7e12) / 1e15])


_SMALLEST, _LARGEST = 0, -1
_NVLINK, _BY_RATE = "NVLink", "100 Gb/s per node"
_on_big_red = partial(Prediction, "", cluster="big-red-200")
ANSWERS: Answers = {
    "C122": _on_big_red(_gradient_megabytes),
    "C123 C124": Quantity(GPT350M, partial(_collectives_ms, 4)),
    "C125": Quantity(GPT350M, partial(_busbw, 4)),
    "C126": Quantity(GPT350M, partial(_busbw, 8)),
    "C127": Quantity(GPT350M, partial(_collectives_ms, 8)),
    "C128": Statement(GPT350M, lambda r: falls(_chosen(collective_times_s(r)), "gpus", (8, 4))),
    "C129": Statement(GPT350M, _insignificant_on_one_node),
    "C130": Statement(GPT350M, _compute_is_flat),
    "C131": Quantity(GPT350M, lambda r: 100 * mean(_fraction(r).sel(gpus=8))),
    "C132": Statement(GPT350M, _larger_model_communicates_more),
    "C133": Statement(GPT350M, _flat_on_one_node),
    "C134": Statement(GPT350M, lambda r: falls(_chosen(tokens_per_s_per_gpu(r)), "gpus", (4, 8))),
    "C135": (Quantity(GPT350M, _adam_bytes, MEASURED), _on_big_red(_predicted_adam_bytes)),
    "C136": _on_big_red(_table_is_consistent),
    "C137": _on_big_red(_busbw_elsewhere(8, 2, _BY_RATE, _SMALLEST)),
    "C138": _on_big_red(_busbw_elsewhere(8, 2, _BY_RATE, _LARGEST)),
    "C139": _on_big_red(_busbw_elsewhere(4, 1, _NVLINK, _SMALLEST)),
    "C140": _on_big_red(_busbw_elsewhere(4, 1, _NVLINK, _LARGEST)),
    "C141": _on_big_red(_peak_pflops),
}
