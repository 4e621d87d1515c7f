"""Tables of compressed training from numbers that are known."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from made_up import made_up_configuration, made_up_records

from repro.catalog.studies.compression import read_compression_study
from repro.errors import ReproError
from repro.launch.execution import result_of
from repro.observe.nic import NicSeries
from repro.results.merging import merge
from repro.results.outcome import Outcome, OutOfMemory
from repro.results.schema import coordinates
from repro.results.store import not_run
from repro.studies.compression.figures import loss_curves, loss_over_time, measured_times
from repro.studies.compression.losses import loss_measurement, loss_run
from repro.studies.compression.tables import has_losses, loss_dataset, loss_table, time_table
from repro.train.records import RankRecord

_STEPS, _SEEDS = (10, 20), (1, 2, 3)
# What a scheme's losses are above those without compression, by seed.
_ABOVE = {"none": (0.0, 0.0, 0.0), "naive-4": (0.3, 0.5, 0.4), "hybrid-4": (-0.1, 0.1, 0.0)}
_NAIVE_TIME = 0.8


@pytest.fixture(scope="module")
def results() -> xr.Dataset:
    parts = []
    for scheme, times in (("none", 1.0), ("naive-4", _NAIVE_TIME)):
        for protocol in ("rdma", "tcp"):
            one = made_up_configuration(coordinates("gpt2-medium", protocol, 8))
            one["iteration_time_s"] = one["iteration_time_s"] * times
            parts.append(one.expand_dims(scheme=[scheme]))
    for scheme, above in _ABOVE.items():
        for seed, more in zip(_SEEDS, above, strict=True):
            values = 6.0 + 0.2 * seed - 0.1 * np.arange(len(_STEPS)) + more
            losses = {"validation_loss": ("validated_step", values)}
            part = xr.Dataset(losses, {"validated_step": list(_STEPS)})
            parts.append(part.expand_dims(scheme=[scheme], seed=[seed]))
    return merge(parts)


def test_gains_are_of_throughput(results: xr.Dataset) -> None:
    table = time_table(results)
    assert list(table.index) == [
        (protocol, scheme) for protocol in ("rdma", "tcp") for scheme in ("none", "naive-4")
    ]
    gains = table.gain_percent.unstack()
    assert gains.none.tolist() == [0, 0]
    assert gains["naive-4"].tolist() == pytest.approx([100 * (1 / _NAIVE_TIME - 1)] * 2)
    assert (table.low <= table.iteration_s).all() and (table.iteration_s <= table.high).all()


def test_losses_are_compared_by_seed(results: xr.Dataset) -> None:
    table = loss_table(results)
    assert list(table.index) == list(_ABOVE)
    # Seeds are 0.2 apart, differences 0.1.
    assert table.spread["none"] == pytest.approx(0.2)
    naive = table.loc["naive-4"]
    assert naive.above_none == pytest.approx(0.4)
    # Student's t of two degrees of freedom, at 95 %.
    assert naive.high - naive.above_none == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    hybrid = table.loc["hybrid-4"]
    assert hybrid.low < 0 < hybrid.high


def test_a_trainings_losses_are_means_over_replicas() -> None:
    study = read_compression_study()
    records: list[RankRecord] = list(made_up_records(coordinates("gpt2-medium", "rdma", 2)))
    changed = [
        _with(records[0], loss=(float("nan"),) * 4, validation=(5.0, 4.0)),
        _with(records[1], loss=(4.0, 3.0, 2.0, 1.0), validation=(5.0, 4.0)),
    ]
    run = loss_run(study, "default")
    found = loss_dataset(run, Outcome(tuple(changed), NicSeries([], [], []), (), 0.0))
    assert found["training_loss"].squeeze().values.tolist() == [4.0, 3.0, 2.0, 1.0]
    assert found["validated_step"].values.tolist() == [run.validate_every, 2 * run.validate_every]


def _with(record: RankRecord, loss: tuple[float, ...], validation: tuple[float, ...]) -> RankRecord:
    return replace(record, loss=loss, validation_loss=validation)


def test_tables_say_why_there_is_nothing() -> None:
    empty = not_run({"testbed": "no namespaces"})
    assert not has_losses(empty)
    for table in (time_table(empty), loss_table(empty)):
        assert table["not run"].tolist() == ["testbed: no namespaces"]


@pytest.mark.slow
def test_figures_show_every_scheme(results: xr.Dataset) -> None:
    import holoviews as hv
    import hvplot

    hvplot.extension("matplotlib")
    assert len(measured_times(results)) == 2
    curves = loss_curves(results).traverse(lambda one: one, [hv.Curve])
    assert [one.label for one in curves if one.label] == ["naive 4 bits", "hybrid 4 and 16 bits"]
    over_time = loss_over_time(results)
    ends = [one["time"].max() for one in over_time.traverse(lambda one: one, [hv.Curve])]
    assert len(ends) == 4
    assert ends[1] == pytest.approx(_NAIVE_TIME * ends[0])


def test_a_training_without_room_is_an_error_that_names_it() -> None:
    request = loss_measurement("default").requests[0]
    seed = request.run.seed
    with pytest.raises(ReproError, match=f"none, seed {seed}: out of memory .rank 3 has no room"):
        result_of(request, OutOfMemory(3, "rank 3 has no room"))
