"""How each claim is tested on results: one small function per quantity, none knows a number.

A claim that several documents repeat is tested once; the ids are listed together.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import xarray as xr

from repro.results.metrics import (
    Statistic,
    communication_fraction,
    embedding_sync_s,
    forward_receive_s,
    iteration_time_s,
    last_stage_s,
    phase_time_s,
    speed_up,
    strong_efficiency,
    timer_fraction,
    utilisation_gbps,
    weak_efficiency,
)

STRONG, WEAK = "strong_scaling", "weak_scaling"
PIPELINES, CLUSTER_B = "model_parallelism", "cluster_b"
DATA_BATCHES, PIPELINE_BATCHES = "data_batches", "pipeline_batches"
# What the documents do not state, and answers from an experiment take for it.
ASSUMPTIONS = {
    PIPELINES: "micro batch 4 assumed; the paper does not state it",
    DATA_BATCHES: "RDMA and nothing recomputed assumed; the paper does not state them",
    PIPELINE_BATCHES: "RDMA, micro batch 4 and nothing recomputed assumed",
    CLUSTER_B: "one 100 Gbit/s port a node assumed",
}
# What the testbed cannot find out: its GPUs' memory is cut to what the model predicts.
MEMORY_INPUTS = dict.fromkeys(
    ("C106", "C111", "C112"), "the memory of emulated GPUs follows from the predicted one"
)
# Compute times that differ by less are called flat (claim C080 gives no number).
_FLAT = 0.10


@dataclass(frozen=True)
class Quantity:
    """A claimed number: how to compute it, in the claim's unit, and what "no effect" would be.

    `neutral` is the value at which the claim would say nothing (a ratio of 1, an efficiency of
    100 %, half of the time); None where there is no such value.
    """

    experiment: str
    compute: Statistic
    neutral: float | None


@dataclass(frozen=True)
class Statement:
    """A claimed order or trend: whether it holds."""

    experiment: str
    holds: Statistic


def _mean(values: xr.DataArray) -> xr.DataArray:
    return values.mean(_all_but_resample(values), skipna=False)


def _all(values: xr.DataArray) -> xr.DataArray:
    return values.all(_all_but_resample(values))


def _all_but_resample(values: xr.DataArray) -> list[Hashable]:
    return [dim for dim in values.dims if dim != "resample"]


def _efficiency(phase: str, kind: str) -> Quantity:
    law = strong_efficiency if kind == STRONG else weak_efficiency
    return Quantity(kind, lambda r: 100 * _mean(law(phase_time_s(r, phase), 2, 8)), 100.0)


def _share(experiment: str, protocol: str) -> Quantity:
    return Quantity(experiment, lambda r: 100 * _mean(_shares(r, protocol)), 50.0)


def _largest_share(experiment: str, protocol: str) -> Quantity:
    return Quantity(
        experiment, lambda r: 100 * _shares(r, protocol).max("model", skipna=False), 50.0
    )


def _shares(results: xr.Dataset, protocol: str) -> xr.DataArray:
    return communication_fraction(results).sel(protocol=protocol, gpus=8)


def _utilisation(results: xr.Dataset, gpus: int = 8) -> xr.DataArray:
    return utilisation_gbps(results).sel(gpus=gpus)


def _lowest_rate(experiment: str, protocol: str) -> Quantity:
    return Quantity(
        experiment,
        lambda r: _utilisation(r).sel(protocol=protocol).min("model", skipna=False),
        None,
    )


def _highest_rate(experiment: str, protocol: str) -> Quantity:
    return Quantity(
        experiment,
        lambda r: _utilisation(r).sel(protocol=protocol).max("model", skipna=False),
        None,
    )


def _model_rate(experiment: str, model: str) -> Quantity:
    return Quantity(experiment, lambda r: _mean(_utilisation(r).sel(model=model)), None)


def _iteration_gain(protocol: str) -> Quantity:
    return Quantity(
        WEAK,
        lambda r: _mean(speed_up(iteration_time_s(r).sel(gpus=8), protocol, "rdma")),
        1.0,
    )


def _sync_gain(protocol: str) -> Quantity:
    return Quantity(
        WEAK,
        lambda r: _mean(speed_up(phase_time_s(r, "gradient sync").sel(gpus=8), protocol, "rdma")),
        1.0,
    )


def _rate_gain(protocol: str) -> Quantity:
    return Quantity(WEAK, lambda r: _mean(_rate_gains(r).sel(protocol=protocol)), 1.0)


def _rate_gains(results: xr.Dataset) -> xr.DataArray:
    return _utilisation(results, 8) / _utilisation(results, 4)


def _sync_growth(results: xr.Dataset) -> xr.DataArray:
    sync = phase_time_s(results, "gradient sync")
    return _mean(sync.sel(gpus=8) / sync.sel(gpus=2))


def _sent_per_received(results: xr.Dataset) -> xr.DataArray:
    rates = [utilisation_gbps(results, direction).sel(gpus=8) for direction in ("tx", "rx")]
    return _mean(rates[0] / rates[1])


def _rates_ordered(results: xr.Dataset) -> xr.DataArray:
    rate = _utilisation(results).mean("model", skipna=False)
    return _falls(rate, "protocol", ("rdma", "ipoib", "tcp"))


def _gains_ordered(results: xr.Dataset) -> xr.DataArray:
    gain = _rate_gains(results).mean("model", skipna=False)
    return _falls(gain, "protocol", ("rdma", "ipoib", "tcp"))


def _times_ordered(results: xr.Dataset) -> xr.DataArray:
    time = iteration_time_s(results).sel(gpus=8).mean("model", skipna=False)
    return _falls(time, "protocol", ("tcp", "ipoib", "rdma"))


def _compute_falls(phase: str) -> Statistic:
    def holds(results: xr.Dataset) -> xr.DataArray:
        time = phase_time_s(results, phase).mean(["model", "protocol"], skipna=False)
        return _falls(time, "gpus", (2, 4, 8))

    return holds


def _falls(values: xr.DataArray, dim: str, order: tuple[object, ...]) -> xr.DataArray:
    ordered = values.sel({dim: list(order)})
    return _all(ordered.diff(dim) < 0)


def _sync_is_largest(results: xr.Dataset) -> xr.DataArray:
    at8 = results.sel(gpus=8)
    sync = phase_time_s(at8, "straggler wait", "gradient sync").mean("model", skipna=False)
    others = [
        phase_time_s(at8, phase).mean("model", skipna=False)
        for phase in ("forward compute", "backward compute", "optimizer")
    ]
    return _all(xr.concat([sync > other for other in others], dim="phase"))


def _rate_highest_at_8(results: xr.Dataset) -> xr.DataArray:
    means = [_utilisation(results, gpus).mean("model", skipna=False) for gpus in (8, 4)]
    return _all(means[0] > means[1])


def _rate_highest_of(model: str) -> Statistic:
    def holds(results: xr.Dataset) -> xr.DataArray:
        rate = _utilisation(results).mean("protocol", skipna=False)
        return _all(rate.sel(model=model, drop=True) > rate.drop_sel(model=model))

    return holds


def _order_of_rates(results: xr.Dataset) -> xr.DataArray:
    rate = _utilisation(results).mean("protocol", skipna=False)
    return _falls(rate, "model", ("gpt2-large", "bert-large", "t5-large", "gpt2-medium"))


def _larger_models_sync_longer(results: xr.Dataset) -> xr.DataArray:
    sync = phase_time_s(results, "gradient sync")
    larger = sync.sel(model=["gpt2-large", "t5-large"]).min("model", skipna=False)
    smaller = sync.sel(model=["gpt2-medium", "bert-large"]).max("model", skipna=False)
    return _all(larger > smaller)


def _compute_is_flat(results: xr.Dataset) -> xr.DataArray:
    efficiencies = [
        _mean(weak_efficiency(phase_time_s(results, phase), 2, 8))
        for phase in ("forward compute", "backward compute")
    ]
    return _all(abs(xr.concat(efficiencies, dim="phase") - 1) < _FLAT)


# Pipelines, as the paper's timers have them (`repro.results.metrics`).


def _pipeline_gain(protocol: str) -> Quantity:
    """Mean over models, and over the GPU counts that need the network."""
    return Quantity(
        PIPELINES,
        lambda r: _mean(speed_up(_between_nodes(iteration_time_s(r)), protocol, "rdma")),
        1.0,
    )


def _largest_gain(timer: Callable[[xr.Dataset], xr.DataArray], protocol: str) -> Quantity:
    return Quantity(
        PIPELINES,
        lambda r: _largest(speed_up(_between_nodes(timer(r)), protocol, "rdma")),
        1.0,
    )


def _between_nodes(values: xr.DataArray) -> xr.DataArray:
    return values.sel(gpus=[4, 8])


def _largest(values: xr.DataArray) -> xr.DataArray:
    return values.max(_all_but_resample(values), skipna=False)


def _smallest(values: xr.DataArray) -> xr.DataArray:
    return values.min(_all_but_resample(values))


def _pipeline_compute(results: xr.Dataset) -> xr.DataArray:
    return last_stage_s(results, "forward compute", "backward compute")


def _pipeline_compute_rises(results: xr.Dataset) -> xr.DataArray:
    time = _pipeline_compute(results).mean(["model", "protocol"], skipna=False)
    return _falls(time, "gpus", (8, 4, 2))


def _pipeline_compute_grows(results: xr.Dataset) -> xr.DataArray:
    """By more than what is called flat in data parallelism, from 2 to 8 GPUs."""
    time = _pipeline_compute(results).mean(["model", "protocol"], skipna=False)
    return _all(time.sel(gpus=8) / time.sel(gpus=2) > 1 + _FLAT)


def _four_terms_dominate(results: xr.Dataset) -> xr.DataArray:
    four = _pipeline_compute(results) + forward_receive_s(results) + embedding_sync_s(results)
    return _all(four > 0.5 * iteration_time_s(results))


def _waits_most(model: str) -> Statistic:
    def holds(results: xr.Dataset) -> xr.DataArray:
        share = timer_fraction(results).sel(gpus=8).mean("protocol", skipna=False)
        return _all(share.sel(model=model, drop=True) > share.drop_sel(model=model))

    return holds


# Growing batches. Where memory was not enough there is no time, and so no share.


def _data_share(results: xr.Dataset) -> xr.DataArray:
    return communication_fraction(results).squeeze(["protocol", "gpus"], drop=True)


def _share_at_limit(results: xr.Dataset) -> xr.DataArray:
    """The smallest share before memory runs out, of all models but BERT-Large."""
    return 100 * _smallest(_data_share(results).drop_sel(model="bert-large"))


def _share_falls_with_batch(results: xr.Dataset) -> xr.DataArray:
    steps = _data_share(results).diff("global_batch_size")
    return _all((steps < 0) | steps.isnull())


def _largest_batch(results: xr.Dataset) -> xr.DataArray:
    fits = results["out_of_memory"].squeeze(["protocol", "gpus"], drop=True) == 0
    return (fits * fits["global_batch_size"]).max("global_batch_size")


def _bert_fits_most(results: xr.Dataset) -> xr.DataArray:
    largest = _largest_batch(results)
    others = largest.drop_sel(model="bert-large").max("model")
    return _all(largest.sel(model="bert-large", drop=True) > 2 * others)


def _share_on_b(results: xr.Dataset) -> xr.DataArray:
    return 100 * _mean(communication_fraction(results).sel(gpus=16))


def _pipeline_share(results: xr.Dataset) -> xr.DataArray:
    return timer_fraction(results).squeeze("protocol", drop=True)


def _pipeline_share_rises_with_batch(results: xr.Dataset) -> xr.DataArray:
    steps = _pipeline_share(results).diff("global_batch_size")
    return _all((steps > 0) | steps.isnull())


def _pipeline_share_falls_with_gpus(results: xr.Dataset) -> xr.DataArray:
    steps = _pipeline_share(results).diff("gpus")
    return _all((steps < 0) | steps.isnull())


def _gpt2_large_is_out_of_memory(results: xr.Dataset) -> xr.DataArray:
    cell = {"model": "gpt2-large", "gpus": 8, "global_batch_size": 128}
    return _all(results["out_of_memory"].sel(cell) == 1)


def _pipeline_floor(batch: int) -> Quantity:
    return Quantity(
        PIPELINE_BATCHES,
        lambda r: 100 * _smallest(_pipeline_share(r).sel(global_batch_size=batch)),
        50.0,
    )


_GROUPS: dict[tuple[str, ...], Quantity | Statement] = {
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
    ("C012", "C068"): Statement(STRONG, _rates_ordered),
    ("C013", "C042"): Statement(STRONG, _rate_highest_of("gpt2-large")),
    ("C014", "C061"): _model_rate(STRONG, "gpt2-large"),
    ("C015", "C070"): _efficiency("forward compute", WEAK),
    ("C016", "C071"): _efficiency("backward compute", WEAK),
    ("C017", "C032", "C074", "C116"): _iteration_gain("ipoib"),
    ("C018", "C033", "C075", "C117"): _iteration_gain("tcp"),
    ("C019", "C077"): _largest_share(WEAK, "rdma"),
    ("C020", "C078"): _largest_share(WEAK, "ipoib"),
    ("C021", "C039", "C040", "C079"): _largest_share(WEAK, "tcp"),
    ("C022", "C088"): _lowest_rate(WEAK, "rdma"),
    ("C023", "C089"): _highest_rate(WEAK, "rdma"),
    ("C024", "C090"): _lowest_rate(WEAK, "ipoib"),
    ("C025", "C091"): _highest_rate(WEAK, "ipoib"),
    ("C026", "C092"): _lowest_rate(WEAK, "tcp"),
    ("C027", "C093"): _highest_rate(WEAK, "tcp"),
    ("C030",): Statement(STRONG, _times_ordered),
    ("C031",): Statement(WEAK, _times_ordered),
    ("C046",): Statement(STRONG, _compute_falls("forward compute")),
    ("C047",): Statement(STRONG, _compute_falls("backward compute")),
    ("C048",): Quantity(STRONG, _sync_growth, 1.0),
    ("C052",): Statement(STRONG, _sync_is_largest),
    ("C059",): Quantity(STRONG, _sent_per_received, None),
    ("C060",): Statement(STRONG, _rate_highest_at_8),
    ("C062",): _model_rate(STRONG, "gpt2-medium"),
    ("C063",): _model_rate(STRONG, "bert-large"),
    ("C064",): _model_rate(STRONG, "t5-large"),
    ("C065",): Statement(STRONG, _order_of_rates),
    ("C072",): _sync_gain("ipoib"),
    ("C073",): _sync_gain("tcp"),
    ("C076",): Statement(WEAK, _larger_models_sync_longer),
    ("C080",): Statement(WEAK, _compute_is_flat),
    ("C081",): Statement(WEAK, _sync_is_largest),
    ("C082",): _rate_gain("tcp"),
    ("C083",): _rate_gain("ipoib"),
    ("C084",): _rate_gain("rdma"),
    ("C085",): Statement(WEAK, _gains_ordered),
    ("C086",): _model_rate(WEAK, "gpt2-large"),
    ("C087",): Statement(WEAK, _rate_highest_of("gpt2-large")),
    ("C094",): Statement(WEAK, _rates_ordered),
    ("C034", "C118"): _pipeline_gain("ipoib"),
    ("C035", "C119"): _pipeline_gain("tcp"),
    ("C041",): Quantity(PIPELINES, lambda r: 100 * _largest(timer_fraction(r)), 50.0),
    ("C095",): Statement(PIPELINES, _four_terms_dominate),
    ("C096", "C103"): Statement(PIPELINES, _pipeline_compute_rises),
    ("C097",): _largest_gain(forward_receive_s, "tcp"),
    ("C098",): _largest_gain(embedding_sync_s, "tcp"),
    ("C099",): _largest_gain(forward_receive_s, "ipoib"),
    ("C100",): _largest_gain(embedding_sync_s, "ipoib"),
    ("C101",): Statement(PIPELINES, _waits_most("t5-large")),
    ("C102",): Statement(PIPELINES, _times_ordered),
    ("C115",): Statement(PIPELINES, _pipeline_compute_grows),
    ("C028", "C104"): Quantity(DATA_BATCHES, _share_at_limit, 50.0),
    ("C029", "C105"): Statement(DATA_BATCHES, _share_falls_with_batch),
    ("C106",): Statement(DATA_BATCHES, _bert_fits_most),
    ("C112",): Quantity(DATA_BATCHES, lambda r: _largest_batch(r).sel(model="gpt2-large"), None),
    ("C107",): Statement(PIPELINE_BATCHES, _pipeline_share_rises_with_batch),
    ("C108",): Statement(PIPELINE_BATCHES, _pipeline_share_falls_with_gpus),
    ("C109",): _pipeline_floor(64),
    ("C110",): _pipeline_floor(128),
    ("C111",): Statement(PIPELINE_BATCHES, _gpt2_large_is_out_of_memory),
    ("C043", "C113"): Quantity(CLUSTER_B, _share_on_b, 50.0),
}

TESTS: dict[str, Quantity | Statement] = {
    claim: test for claims, test in _GROUPS.items() for claim in claims
}
