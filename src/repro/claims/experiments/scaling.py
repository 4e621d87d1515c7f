"""Tests of the claims about data parallelism on 2 to 8 GPUs: strong and weak scaling."""

from collections.abc import Callable

import xarray as xr

from repro.catalog.phases import COMPUTING
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
    communication_fraction,
    iteration_time_s,
    phase_time_s,
    speed_up,
    strong_efficiency,
    utilisation_gbps,
    weak_efficiency,
)

Reduce = Callable[[xr.DataArray], xr.DataArray]
STRONG, WEAK = "strong_scaling", "weak_scaling"


def _efficiency(phase: str, kind: str) -> Quantity:
    law = strong_efficiency if kind == STRONG else weak_efficiency
    formula = "2 T(2) / (8 T(8))" if kind == STRONG else "T(2) / T(8)"
    return Quantity(
        kind,
        lambda r: 100 * mean(law(phase_time_s(r, phase), 2, 8)),
        100.0,
        f"{formula} of {phase}, mean over models and protocols",
    )


def _share(experiment: str, protocol: str, of: Reduce = mean, named: str = "mean") -> Quantity:
    """In percent, of all models together."""

    def share(results: xr.Dataset) -> xr.DataArray:
        return 100 * of(communication_fraction(results).sel(protocol=protocol, gpus=8))

    formula = f"(straggler wait + gradient sync) / T(8) over {protocol}, {named} of the models"
    return Quantity(experiment, share, 50.0, formula)


def _utilisation(results: xr.Dataset, gpus: int = 8) -> xr.DataArray:
    return utilisation_gbps(results).sel(gpus=gpus)


def _lowest_rate(experiment: str, protocol: str) -> Quantity:
    # Unlike `smallest`, NaN where a model is missing.
    return Quantity(
        experiment,
        lambda r: -largest(-_utilisation(r).sel(protocol=protocol)),
        None,
        f"smallest over models of bytes received by a NIC in an iteration / T(8), over {protocol}",
    )


def _highest_rate(experiment: str, protocol: str) -> Quantity:
    return Quantity(
        experiment,
        lambda r: largest(_utilisation(r).sel(protocol=protocol)),
        None,
        f"largest over models of bytes received by a NIC in an iteration / T(8), over {protocol}",
    )


def _model_rate(experiment: str, model: str) -> Quantity:
    return Quantity(
        experiment,
        lambda r: mean(_utilisation(r).sel(model=model)),
        None,
        f"bytes received by a NIC in an iteration / T(8) of {model}, mean over protocols",
    )


def _gain(time: Statistic, protocol: str, named: str = "iterations") -> Quantity:
    """RDMA's gain over another protocol in weak scaling."""
    return Quantity(
        WEAK,
        lambda r: mean(speed_up(time(r).sel(gpus=8), protocol, "rdma")),
        1.0,
        f"T(8) over {protocol} / T(8) over rdma of {named}, mean over models",
    )


def _sync_s(results: xr.Dataset) -> xr.DataArray:
    return phase_time_s(results, "gradient sync")


def _rate_gain(protocol: str) -> Quantity:
    return Quantity(
        WEAK,
        lambda r: mean(_rate_gains(r).sel(protocol=protocol)),
        1.0,
        f"a NIC's rate with 8 GPUs / with 4 GPUs over {protocol}, mean over models",
    )


def _rate_gains(results: xr.Dataset) -> xr.DataArray:
    return _utilisation(results, 8) / _utilisation(results, 4)


def _sync_growth(results: xr.Dataset) -> xr.DataArray:
    sync = _sync_s(results)
    return mean(sync.sel(gpus=8) / sync.sel(gpus=2))


def _sent_per_received(results: xr.Dataset) -> xr.DataArray:
    sent, received = (utilisation_gbps(results, way).sel(gpus=8) for way in ("tx", "rx"))
    return mean(sent / received)


def _rdma_first(rates: xr.DataArray) -> xr.DataArray:
    """Whether RDMA's mean over models is highest, and TCP's lowest."""
    return falls(rates.mean("model", skipna=False), "protocol", ("rdma", "ipoib", "tcp"))


def _rates_ordered(results: xr.Dataset) -> xr.DataArray:
    return _rdma_first(_utilisation(results))


def _compute_falls(phase: str) -> Statistic:
    def holds(results: xr.Dataset) -> xr.DataArray:
        time = phase_time_s(results, phase).mean(["model", "protocol"], skipna=False)
        return falls(time, "gpus", (2, 4, 8))

    return holds


def _sync_is_largest(results: xr.Dataset) -> xr.DataArray:
    at8 = results.sel(gpus=8)
    sync = phase_time_s(at8, "straggler wait", "gradient sync").mean("model", skipna=False)
    others = [phase_time_s(at8, phase).mean("model", skipna=False) for phase in COMPUTING]
    return above_zero(xr.concat([sync - other for other in others], dim="phase"))


def _rate_highest_at_8(results: xr.Dataset) -> xr.DataArray:
    return falls(utilisation_gbps(results).mean("model", skipna=False), "gpus", (8, 4))


def _mean_rate(results: xr.Dataset) -> xr.DataArray:
    return _utilisation(results).mean("protocol", skipna=False)


def _rate_highest_of_gpt2_large(results: xr.Dataset) -> xr.DataArray:
    return is_highest(_mean_rate(results), "gpt2-large")


def _order_of_rates(results: xr.Dataset) -> xr.DataArray:
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


TESTS: dict[tuple[str, ...], Quantity | Statement] = {
    ("C001", "C044"): _efficiency("forward compute", STRONG),
    ("C002", "C045"): _efficiency("backward compute", STRONG),
    ("C003", "C049"): _share(STRONG, "rdma"),
    ("C004", "C050"): _share(STRONG, "ipoib"),
    ("C005", "C051"): _share(STRONG, "tcp"),
    ("C006", "C053"): _lowest_rate(STRONG, "rdma"),
    ("C007", "C054", "C036"): _highest_rate(STRONG, "rdma"),
    ("C008", "C055"): _lowest_rate(STRONG, "ipoib"),
    ("C009", "C056", "C037"): _highest_rate(STRONG, "ipoib"),
    ("C010", "C057"): _lowest_rate(STRONG, "tcp"),
    ("C011", "C058", "C038"): _highest_rate(STRONG, "tcp"),
    ("C012", "C068"): Statement(
        STRONG, _rates_ordered, "mean over models of a NIC's rate on 8 GPUs: rdma > ipoib > tcp"
    ),
    ("C013", "C042"): Statement(
        STRONG,
        _rate_highest_of_gpt2_large,
        "a NIC's rate on 8 GPUs, mean over protocols: gpt2-large > each other model",
    ),
    ("C014", "C061"): _model_rate(STRONG, "gpt2-large"),
    ("C015", "C070"): _efficiency("forward compute", WEAK),
    ("C016", "C071"): _efficiency("backward compute", WEAK),
    ("C017", "C032", "C074", "C116"): _gain(iteration_time_s, "ipoib"),
    ("C018", "C033", "C075", "C117"): _gain(iteration_time_s, "tcp"),
    ("C019", "C077"): _share(WEAK, "rdma", largest, "largest"),
    ("C020", "C078"): _share(WEAK, "ipoib", largest, "largest"),
    ("C021", "C039", "C040", "C079"): _share(WEAK, "tcp", largest, "largest"),
    ("C022", "C088"): _lowest_rate(WEAK, "rdma"),
    ("C023", "C089"): _highest_rate(WEAK, "rdma"),
    ("C024", "C090"): _lowest_rate(WEAK, "ipoib"),
    ("C025", "C091"): _highest_rate(WEAK, "ipoib"),
    ("C026", "C092"): _lowest_rate(WEAK, "tcp"),
    ("C027", "C093"): _highest_rate(WEAK, "tcp"),
    ("C030",): Statement(STRONG, times_ordered, "T(8), mean over models: tcp > ipoib > rdma"),
    ("C031",): Statement(WEAK, times_ordered, "T(8), mean over models: tcp > ipoib > rdma"),
    ("C046",): Statement(
        STRONG,
        _compute_falls("forward compute"),
        "T(2) > T(4) > T(8) of forward compute, mean over models and protocols",
    ),
    ("C047",): Statement(
        STRONG,
        _compute_falls("backward compute"),
        "T(2) > T(4) > T(8) of backward compute, mean over models and protocols",
    ),
    ("C048",): Quantity(
        STRONG,
        _sync_growth,
        1.0,
        "T(8) / T(2) of the gradient sync, mean over models and protocols",
    ),
    ("C052",): Statement(
        STRONG,
        _sync_is_largest,
        "T(8) of straggler wait + gradient sync > of forward compute, backward compute, "
        "optimizer; over each protocol",
    ),
    ("C059",): Quantity(
        STRONG,
        _sent_per_received,
        None,
        "bytes sent / bytes received by a NIC on 8 GPUs, mean over models and protocols",
    ),
    ("C060",): Statement(
        STRONG,
        _rate_highest_at_8,
        "mean over models of a NIC's rate: 8 GPUs > 4 GPUs, over each protocol",
    ),
    ("C062",): _model_rate(STRONG, "gpt2-medium"),
    ("C063",): _model_rate(STRONG, "bert-large"),
    ("C064",): _model_rate(STRONG, "t5-large"),
    ("C065",): Statement(
        STRONG,
        _order_of_rates,
        "a NIC's rate on 8 GPUs, mean over protocols: gpt2-large > bert-large > t5-large > "
        "gpt2-medium",
    ),
    ("C072",): _gain(_sync_s, "ipoib", "the gradient sync"),
    ("C073",): _gain(_sync_s, "tcp", "the gradient sync"),
    ("C076",): Statement(
        WEAK,
        _larger_models_sync_longer,
        "gradient sync of gpt2-large and t5-large > of gpt2-medium and bert-large, over each "
        "protocol on 2, 4 and 8 GPUs",
    ),
    ("C080",): Statement(
        WEAK,
        _compute_is_flat,
        "|T(2) / T(8) - 1| < 0.1 of forward and of backward compute, mean over models and "
        "protocols",
    ),
    ("C081",): Statement(
        WEAK,
        _sync_is_largest,
        "T(8) of straggler wait + gradient sync > of forward compute, backward compute, "
        "optimizer; over each protocol",
    ),
    ("C082",): _rate_gain("tcp"),
    ("C083",): _rate_gain("ipoib"),
    ("C084",): _rate_gain("rdma"),
    ("C085",): Statement(
        WEAK,
        lambda r: _rdma_first(_rate_gains(r)),
        "a NIC's rate with 8 GPUs / with 4 GPUs, mean over models: rdma > ipoib > tcp",
    ),
    ("C086",): _model_rate(WEAK, "gpt2-large"),
    ("C087",): Statement(
        WEAK,
        _rate_highest_of_gpt2_large,
        "a NIC's rate on 8 GPUs, mean over protocols: gpt2-large > each other model",
    ),
    ("C094",): Statement(
        WEAK, _rates_ordered, "mean over models of a NIC's rate on 8 GPUs: rdma > ipoib > tcp"
    ),
}
