"""Figures keep Hoefler and Belli's rules (docs/explanation/reporting.md)."""

import holoviews as hv
import hvplot
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from drawing import drawn
from made_up import made_up_pipeline

from repro.catalog.studies.collectives import select_sweep
from repro.catalog.studies.selection import select
from repro.catalog.systems.clusters import cluster
from repro.figures.experiments.batches import batch_heatmap, share_by_micro_batch
from repro.figures.experiments.collectives import bandwidth_curves
from repro.figures.experiments.pipelines import node_utilisation, timer_breakdown
from repro.figures.experiments.scaling import breakdown, received_over_time, share_by_protocol
from repro.figures.experiments.sharded import collective_times, share_by_gpus, throughput_by_gpus
from repro.figures.export import shown_values
from repro.figures.panels import cumulative
from repro.figures.predicted.hardware import (
    fronts,
    generations_compared,
    parts_of_speed_up,
    speed_by_memory,
    waits_by_node,
)
from repro.figures.predicted.larger import larger_scale
from repro.figures.predicted.serving import latency_throughput, operator_shares
from repro.figures.predicted.what_if import compare, plan_memory, reference_jobs
from repro.predict.explore.experiments.collective_sweeps import published_sweep
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.predict.explore.jobs.larger import predict_larger
from repro.results.metrics import iteration_time_s
from repro.results.schema import coordinates
from repro.studies.compression.predicted import predict_compressed
from repro.studies.compression.predicted_figures import gain_by_link
from repro.studies.hierarchical_zero import figures as partitions
from repro.studies.hierarchical_zero.predicted import predict_schemes

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, params=["matplotlib", "bokeh"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


def _all(figure: hv.core.Dimensioned, kind: type) -> list[hv.Element]:
    return [one for one in figure.traverse(lambda one: one, [kind]) if type(one) is kind]


def _levels(figure: hv.core.Dimensioned) -> list[float]:
    return [float(line.data) for line in _all(figure, hv.HLine)]


def _uneven(results: xr.Dataset) -> xr.Dataset:
    """Iterations that take 1, 2, 3 ... times as long, at rates that are as much lower."""
    times = xr.DataArray(1.0 + np.arange(results.sizes["iteration"]), dims="iteration")
    changed = {
        name: (results[name] * times if name.endswith("time_s") else results[name] / times)
        for name in ("iteration_time_s", "phase_time_s", "rx_iteration_full_scale_gbps")
    }
    return results.assign(
        {name: values.transpose(*results[name].dims) for name, values in changed.items()}
    )


def test_shares_have_the_seconds_of_their_iterations(made_up_results: xr.Dataset) -> None:
    gpt350m = predict_experiment(select("gpt350m", "predicted", profile="predicted"))
    micro = predict_experiment(select("micro_batches", "predicted", "rdma", profile="predicted"))
    batches = predict_experiment(select("data_batches", "predicted"))
    for figure, results in (
        (share_by_protocol(made_up_results), made_up_results),
        (share_by_gpus(gpt350m), gpt350m),
        (share_by_micro_batch(micro), micro),
        (batch_heatmap(batches), batches),
    ):
        seconds = shown_values(figure)["iteration_s"].dropna()
        known = iteration_time_s(results).values.ravel()
        assert len(seconds) and all(np.isclose(known, one).any() for one in seconds)


def test_speed_ups_have_the_seconds_of_their_base() -> None:
    one, two = 10.0, 4.0
    table = pd.DataFrame({"iteration_time_s": [one, two], "low_s": [9, 3.5], "high_s": [11, 4.5]})
    figure = generations_compared({"a model": table.set_axis(["old", "new"])}, "old")
    (panel,) = figure
    title = hv.Store.lookup_options(hv.Store.current_backend, panel, "plot").kwargs["title"]
    assert title == "a model; old: 10 s per iteration"
    assert shown_values(figure)["iteration_s"].dropna().tolist() == [one, two]
    parts = pd.DataFrame({"factor": [2.0, 1.25], "least": [1.5, 1.0], "most": [2.5, 1.5]})
    speed_up = parts_of_speed_up(parts.set_axis(["computing", "memory"]), "old to new", one)
    options = hv.Store.lookup_options(hv.Store.current_backend, speed_up.get(0), "plot").kwargs
    assert options["title"] == "old to new: 2.5 times in all, 10 to 4 s per iteration"


def test_gains_have_the_seconds_without_compression() -> None:
    predicted = predict_compressed()
    figure = gain_by_link(predicted)
    ticks = hv.Store.lookup_options(hv.Store.current_backend, figure, "plot").kwargs["xticks"]
    assert next(text for _, text in ticks) == "Lassen\n40.5 s"
    assert all(text.endswith(" s") for _, text in ticks)


def test_efficiencies_have_the_seconds_of_their_base() -> None:
    results = predict_larger()
    labels = {curve.label for curve in _all(larger_scale(results), hv.Curve)}
    first = float(results["iteration_time_s"].isel(model=0).dropna("gpus")[0])
    assert any(label.startswith(f"GPT-2-Large, {first:.2g} s on ") for label in labels)


def test_percentages_have_the_seconds_that_they_are_parts_of() -> None:
    waited_s = xr.DataArray(
        [[8.0, 1.0, 0.5, 0.5]],
        coords={"nm": [7.0], "bound": ["compute", "memory", "network", "schedule"]},
        dims=["nm", "bound"],
    )
    assert "7 nm, 10 s" in waits_by_node(waited_s).dframe().iloc[:, 0].tolist()
    operators = pd.DataFrame(
        {
            "phase": ["decode"] * 2,
            "operator": ["MLP up", "all-reduce"],
            "time_s": [0.02, 0.01],
            "share_pct": [67.0, 33.0],
            "bound": ["memory", "network"],
        }
    )
    names = operator_shares(operators).dframe().iloc[:, 0]
    assert set(names) == {"decode (0.03 s): MLP up", "decode (0.03 s): all-reduce"}


def test_a_nodes_mean_rate_is_all_bytes_over_all_time(made_up_results: xr.Dataset) -> None:
    results = _uneven(made_up_results)
    (bars, *_) = _all(next(iter(node_utilisation(results))), hv.Rectangles)
    name = bars.label.split(",")[0]
    assert name == "RDMA"
    one = made_up_results["rx_iteration_full_scale_gbps"].isel(gpus=-1, model=0, protocol=0)
    rates = one.isel(node=0).squeeze().values
    # Each moved as many bytes as before; together they took 1 + 2 + ... times one's time.
    expected = rates.sum() / sum(range(1, len(rates) + 1))
    assert expected < 0.8 * float((rates / np.arange(1, len(rates) + 1)).mean())
    assert bars["value"][0] == pytest.approx(expected)


def test_every_iteration_is_a_point(made_up_results: xr.Dataset, backend: str) -> None:
    results = _uneven(made_up_results)
    count = results.sizes["iteration"]
    panel = next(iter(breakdown(results)))
    (points,) = _all(panel, hv.Scatter)
    assert len(points) == 9 * count
    first = 1e3 * iteration_time_s(made_up_results).isel(model=0, gpus=0, protocol=0).item()
    values = points.dimension_values("iteration")[:count]
    assert values == pytest.approx(first * (1 + np.arange(count)))
    drawn(panel, backend)
    gpt350m = predict_experiment(select("gpt350m", "predicted", profile="predicted"))
    twice = xr.concat([gpt350m, gpt350m], "iteration", data_vars="minimal")
    for draw in (collective_times, throughput_by_gpus):
        once, again = (sum(map(len, _all(draw(one), hv.Scatter))) for one in (gpt350m, twice))
        assert again > once


def test_pipelines_have_intervals_and_iterations() -> None:
    # The last rank holds the timers.
    results = made_up_pipeline(coordinates("bert-large", "rdma", 2))
    panel = next(iter(timer_breakdown(results)))
    assert len(_all(panel, hv.ErrorBars)) == 1
    assert sum(map(len, _all(panel, hv.Scatter))) == results.sizes["iteration"]


def test_bandwidths_have_their_bounds(made_up_results: xr.Dataset, backend: str) -> None:
    figure = received_over_time(made_up_results)
    rates = made_up_results["link_set_gbps"] / made_up_results["rate_scale"]
    assert set(_levels(figure)) == {float(rates.max())}
    drawn(figure, backend)
    named = {bars.label for bars in _all(node_utilisation(made_up_results), hv.Rectangles)}
    assert named == {f"{name}, link 20 Gbit/s" for name in ("RDMA", "IPoIB", "TCP/IP")}
    published = published_sweep(select_sweep("big-red-200", "paper"))
    assert _levels(bandwidth_curves(published)) == []
    known = bandwidth_curves(published.assign_attrs(cluster="big-red-200"))
    # Two nodes exchange their sums at 100 Gbit/s, once instead of 2 (n-1)/n times, for 8 GPUs.
    assert _levels(known) == [2 * 7 / 8 * 12.5]
    drawn(known, backend)


def test_model_flops_have_the_peak_above_them() -> None:
    schemes = predict_schemes()
    (peak,) = _levels(partitions.throughput_by_gpus(schemes))
    assert peak == pytest.approx(1e-12 * cluster("frontier").device.peak_flops)
    assert peak > schemes.high.max()


def test_plans_and_processes_are_points_that_no_line_joins() -> None:
    plans = pd.DataFrame(
        {
            "precision": ["bf16", "fp8", "fp8"],
            **{"tp": 1, "pp": 1, "ep": 1, "batch": [1, 2, 4]},
            "output_token_s": [0.01, 0.008, 0.02],
            "tokens_per_s_per_gpu": [100.0, 200.0, 150.0],
            "best": [False, True, True],
        }
    )
    assert _all(latency_throughput(plans, "a title"), hv.Curve) == []
    waited_s = xr.DataArray(
        np.ones((2, 2, 4)),
        coords={
            "nm": [7.0, 5.0],
            "memory": ["HBM2e", "HBM3"],
            "bound": ["compute", "memory", "network", "schedule"],
        },
        dims=["nm", "memory", "bound"],
    )
    figure = speed_by_memory(waited_s)
    assert _all(figure, hv.Curve) == [] and len(_all(figure, hv.Scatter)) == 2


def test_fronts_and_distributions_are_steps(backend: str) -> None:
    front = pd.DataFrame({"power_w": [100.0, 200.0], "iteration_time_s": [10.0, 5.0]})
    (curve,) = _all(fronts({"5 nm": front}), hv.Curve)
    steps = cumulative(pd.Series([3.0, 1.0, np.nan, 2.0]), "a sweep", "black")
    assert steps.dimension_values("gain").tolist() == [1.0, 2.0, 3.0]
    assert steps.dimension_values("share") == pytest.approx([100 / 3, 200 / 3, 100])
    for one in (curve, steps):
        chosen = hv.Store.lookup_options(backend, one, "plot").kwargs
        assert chosen["interpolation"] == "steps-post"


def test_the_memory_of_a_gpu_is_marked_across_its_bar(backend: str) -> None:
    (marks,) = _all(plan_memory(compare(reference_jobs())), hv.Scatter)
    style = hv.Store.lookup_options(backend, marks, "style").kwargs
    assert style["s"] >= 200 if backend == "matplotlib" else style["size"] >= 15
