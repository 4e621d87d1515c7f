"""Claims about data parallelism on 2 to 8 GPUs: strong and weak scaling."""

from functools import partial

import xarray as xr

from repro.catalog.phases import COMPUTING
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
    communication_fraction,
    iteration_time_s,
    phase_time_s,
    speed_up,
    strong_efficiency,
    utilisation_gbps,
    weak_efficiency,
)

STRONG, WEAK = "strong_scaling", "weak_scaling"


def _efficiency(experiment: str, phase: str) -> Quantity:
    law = strong_efficiency if experiment == STRONG else weak_efficiency
    return Quantity(experiment, lambda r: 100 * mean(law(phase_time_s(r, phase), 2, 8)))


def _percent(experiment: str, protocol: str, over_models: Reduce) -> Quantity:
    def percent(results: xr.Dataset) -> xr.DataArray:
        return 100 * over_models(communication_fraction(results).sel(protocol=protocol, gpus=8))

    return Quantity(experiment, percent)


def _rate(results: xr.Dataset, gpus: int = 8) -> xr.DataArray:
    return utilisation_gbps(results).sel(gpus=gpus)


def _lowest_rate(experiment: str, protocol: str) -> Quantity:
    # Unlike `smallest`, NaN where a model is missing.
    return Quantity(experiment, lambda r: -largest(-_rate(r).sel(protocol=protocol)))


def _highest_rate(experiment: str, protocol: str) -> Quantity:
    return Quantity(experiment, lambda r: largest(_rate(r).sel(protocol=protocol)))


def _model_rate(experiment: str, model: str) -> Quantity:
    return Quantity(experiment, lambda r: mean(_rate(r).sel(model=model)))


def _speed_up(time: Statistic, protocol: str) -> Quantity:
    """Return RDMA's speed-up over another protocol in weak scaling."""
    return Quantity(WEAK, lambda r: mean(speed_up(time(r).sel(gpus=8), protocol, "rdma")))


def _rate_gain(protocol: str) -> Quantity:
    return Quantity(WEAK, lambda r: mean(_rate_gains(r).sel(protocol=protocol)))


def _rate_gains(results: xr.Dataset) -> xr.DataArray:
    return _rate(results, 8) / _rate(results, 4)


def _sync_s(results: xr.Dataset) -> xr.DataArray:
    return phase_time_s(results, "gradient sync")


def _sync_growth(results: xr.Dataset) -> xr.DataArray:
    sync = _sync_s(results)
    return mean(sync.sel(gpus=8) / sync.sel(gpus=2))


def _sent_per_received(results: xr.Dataset) -> xr.DataArray:
    sent, received = (utilisation_gbps(results, side).sel(gpus=8) for side in ("tx", "rx"))
    return mean(sent / received)


def _rdma_first(rates: xr.DataArray) -> xr.DataArray:
    """Test whether RDMA's mean over models is highest, and TCP's lowest."""
    return falls(rates.mean("model", skipna=False), "protocol", ("rdma", "ipoib", "tcp"))


def _rates_ordered(results: xr.Dataset) -> xr.DataArray:
    return _rdma_first(_rate(results))


def _compute_falls(phase: str, results: xr.Dataset) -> xr.DataArray:
    time = phase_time_s(results, phase).mean(["model", "protocol"], skipna=False)
    return falls(time, "gpus", (2, 4, 8))


def _sync_is_largest(results: xr.Dataset) -> xr.DataArray:
    at8 = results.sel(gpus=8)
    sync = phase_time_s(at8, "straggler wait", "gradient sync").mean("model", skipna=False)
    others = [phase_time_s(at8, phase).mean("model", skipna=False) for phase in COMPUTING]
    return above_zero(xr.concat([sync - other for other in others], dim="phase"))


def _rate_highest_at_8(results: xr.Dataset) -> xr.DataArray:
    return falls(utilisation_gbps(results).mean("model", skipna=False), "gpus", (8, 4))


def _mean_rate(results: xr.Dataset) -> xr.DataArray:
    return _rate(results).mean("protocol", skipna=False)


def _gpt2_large_is_highest(results: xr.Dataset) -> xr.DataArray:
    return is_highest(_mean_rate(results), "gpt2-large")


def _models_ordered(results: xr.Dataset) -> xr.DataArray:
    order = ("gpt2-large", "bert-large", "t5-large", "gpt2-medium")
    return falls(_mean_rate(results), "model", order)


def _larger_models_sync_longer(results: xr.Dataset) -> xr.DataArray:
    sync = _sync_s(results)
    larger = sync.sel(model=["gpt2-large", "t5-large"]).min("model", skipna=False)
    smaller = sync.sel(model=["gpt2-medium", "bert-large"]).max("model", skipna=False)
    return above_zero(larger - smaller)


def _compute_is_flat(results: xr.Dataset) -> xr.DataArray:
    efficiencies = [
        mean(weak_efficiency(phase_time_s(results, phase), 2, 8))
        for phase in ("forward compute", "backward compute")
    ]
    return above_zero(FLAT - abs(xr.concat(efficiencies, dim="phase") - 1))


ANSWERS: Answers = {
    "C001 C044": _efficiency(STRONG, "forward compute"),
    "C002 C045": _efficiency(STRONG, "backward compute"),
    "C003 C049": _percent(STRONG, "rdma", mean),
    "C004 C050": _percent(STRONG, "ipoib", mean),
    "C005 C051": _percent(STRONG, "tcp", mean),
    "C006 C053": _lowest_rate(STRONG, "rdma"),
    "C007 C054 C036": _highest_rate(STRONG, "rdma"),
    "C008 C055": _lowest_rate(STRONG, "ipoib"),
    "C009 C056 C037": _highest_rate(STRONG, "ipoib"),
    "C010 C057": _lowest_rate(STRONG, "tcp"),
    "C011 C058 C038": _highest_rate(STRONG, "tcp"),
    "C012 C068": Statement(STRONG, _rates_ordered),
    "C013 C042": Statement(STRONG, _gpt2_large_is_highest),
    "C014 C061": _model_rate(STRONG, "gpt2-large"),
    "C015 C070": _efficiency(WEAK, "forward compute"),
    "C016 C071": _efficiency(WEAK, "backward compute"),
    "C017 C032 C074 C116": _speed_up(iteration_time_s, "ipoib"),
    "C018 C033 C075 C117": _speed_up(iteration_time_s, "tcp"),
    "C019 C077": _percent(WEAK, "rdma", largest),
    "C020 C078": _percent(WEAK, "ipoib", largest),
    "C021 C039 C040 C079": _percent(WEAK, "tcp", largest),
    "C022 C088": _lowest_rate(WEAK, "rdma"),
    "C023 C089": _highest_rate(WEAK, "rdma"),
    "C024 C090": _lowest_rate(WEAK, "ipoib"),
    "C025 C091": _highest_rate(WEAK, "ipoib"),
    "C026 C092": _lowest_rate(WEAK, "tcp"),
    "C027 C093": _highest_rate(WEAK, "tcp"),
    "C030": Statement(STRONG, times_ordered),
    "C031": Statement(WEAK, times_ordered),
    "C046": Statement(STRONG, partial(_compute_falls, "forward compute")),
    "C047": Statement(STRONG, partial(_compute_falls, "backward compute")),
    "C048": Quantity(STRONG, _sync_growth),
    "C052": Statement(STRONG, _sync_is_largest),
    "C059": Quantity(STRONG, _sent_per_received),
    "C060": Statement(STRONG, _rate_highest_at_8),
    "C062": _model_rate(STRONG, "gpt2-medium"),
    "C063": _model_rate(STRONG, "bert-large"),
    "C064": _model_rate(STRONG, "t5-large"),
    "C065": Statement(STRONG, _models_ordered),
    "C072": _speed_up(_sync_s, "ipoib"),
    "C073": _speed_up(_sync_s, "tcp"),
    "C076": Statement(WEAK, _larger_models_sync_longer),
    "C080": Statement(WEAK, _compute_is_flat),
    "C081": Statement(WEAK, _sync_is_largest),
    "C082": _rate_gain("tcp"),
    "C083": _rate_gain("ipoib"),
    "C084": _rate_gain("rdma"),
    "C085": Statement(WEAK, lambda r: _rdma_first(_rate_gains(r))),
    "C086": _model_rate(WEAK, "gpt2-large"),
    "C087": Statement(WEAK, _gpt2_large_is_highest),
    "C094": Statement(WEAK, _rates_ordered),
}
