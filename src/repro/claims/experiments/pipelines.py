"""Claims about pipelines on 2 to 8 GPUs, from experiment `model_parallelism`.

Times are those of the paper's timers (`repro.results.metrics`).
"""

import xarray as xr

from repro.claims.quantities import (
    FLAT,
    Answers,
    Quantity,
    Reduce,
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


def _speed_up(time: Statistic, protocol: str, over: Reduce) -> Quantity:
    """Return RDMA's speed-up over another protocol with 4 and 8 GPUs, which need the network."""
    return Quantity(PIPELINES, lambda r: over(speed_up(time(r).sel(gpus=[4, 8]), protocol, "rdma")))


def _compute(results: xr.Dataset) -> xr.DataArray:
    return last_stage_s(results, "forward compute", "backward compute")


def _mean_compute(results: xr.Dataset) -> xr.DataArray:
    return _compute(results).mean(["model", "protocol"], skipna=False)


def _compute_grows(results: xr.Dataset) -> xr.DataArray:
    """Test whether computing grows from 2 to 8 GPUs by more than is flat in data parallelism."""
    time = _mean_compute(results)
    return above_zero(time.sel(gpus=8) / time.sel(gpus=2) - (1 + FLAT))


def _four_terms_dominate(results: xr.Dataset) -> xr.DataArray:
    four = _compute(results) + forward_receive_s(results) + embedding_sync_s(results)
    return above_zero(four - 0.5 * iteration_time_s(results))


def _t5_waits_most(results: xr.Dataset) -> xr.DataArray:
    fraction = timer_fraction(results).sel(gpus=8).mean("protocol", skipna=False)
    return is_highest(fraction, "t5-large")


ANSWERS: Answers = {
    "C034 C118": _speed_up(iteration_time_s, "ipoib", mean),
    "C035 C119": _speed_up(iteration_time_s, "tcp", mean),
    "C041": Quantity(PIPELINES, lambda r: 100 * largest(timer_fraction(r))),
    "C095": Statement(PIPELINES, _four_terms_dominate),
    "C096 C103": Statement(PIPELINES, lambda r: falls(_mean_compute(r), "gpus", (8, 4, 2))),
    "C097": _speed_up(forward_receive_s, "tcp", largest),
    "C098": _speed_up(embedding_sync_s, "tcp", largest),
    "C099": _speed_up(forward_receive_s, "ipoib", largest),
    "C100": _speed_up(embedding_sync_s, "ipoib", largest),
    "C101": Statement(PIPELINES, _t5_waits_most),
    "C102": Statement(PIPELINES, times_ordered),
    "C115": Statement(PIPELINES, _compute_grows),
}
