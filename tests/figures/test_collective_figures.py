"""Bus bandwidth by size: a panel per collective, logarithmic axes, and a legend that says what
was measured and what was predicted."""

from pathlib import Path

import holoviews as hv
import hvplot
import numpy as np
import pytest
import xarray as xr
from drawing import drawn

from repro.catalog.studies.collectives import select_sweep
from repro.figures.experiments.collectives import bandwidth_curves
from repro.figures.experiments.scaling import protocol_colour
from repro.figures.export import save_figure
from repro.predict.explore.experiments.collective_sweeps import predict_sweep, published_sweep
from repro.results.collectives import bandwidths
from repro.results.merging import merge
from repro.results.store import not_run

pytestmark = pytest.mark.slow

_SCALE = 0.01
# The small profile's.
_SIZES = (8, 1_048_576)
_COLLECTIVES = ("all_reduce", "send_recv")
_PROTOCOLS = {"rdma": "RDMA", "tcp": "TCP/IP"}


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


@pytest.fixture(scope="module")
def expected() -> xr.Dataset:
    every = predict_sweep(select_sweep("pinnacles", "predicted", profile="ci"), _SCALE)
    return every.sel(collective=list(_COLLECTIVES))


def _measured(protocol: str, gpus: int) -> xr.Dataset:
    """Six repeats of 1, 1.02 ... 1.1 times 1 ms and 10 ns a byte, on one rank."""
    shape = (3, len(_COLLECTIVES), 1, len(_SIZES))
    times = (1e-3 + 1e-8 * np.array(_SIZES)) * np.ones(shape)
    repeats = times[..., None, None] * (1 + 0.02 * np.arange(6))[:, None]
    dims = ("layout", "collective", "in_place", "size_bytes")
    if gpus == 2:
        # One GPU on each rail.
        repeats[2] = np.nan
    dataset = xr.Dataset(
        {
            "call_time_s": ((*dims, "repeat", "rank"), repeats),
            "moved_bytes": (dims, np.array(_SIZES) * np.ones(shape)),
            "group_ranks": (("layout",), np.array([gpus, 2, gpus / 2])),
        },
        coords={
            "layout": ["world", "node", "rail"],
            "collective": list(_COLLECTIVES),
            "in_place": ["out of place"],
            "size_bytes": list(_SIZES),
            "repeat": range(6),
            "rank": [0],
        },
    )
    where = {"source": "testbed", "protocol": protocol, "gpus": gpus}
    return dataset.assign_coords(where).expand_dims(list(where))


@pytest.fixture(scope="module")
def results() -> xr.Dataset:
    parts = [_measured(name, gpus) for name in _PROTOCOLS for gpus in (2, 8)]
    return merge(parts).assign_attrs(rate_scale=_SCALE)


def _curves(panel: hv.Overlay) -> dict[str, hv.Curve]:
    curves = panel.traverse(lambda element: element, [hv.Curve])
    # Areas are curves as well.
    return {curve.label: curve for curve in curves if not isinstance(curve, hv.Area)}


def _axes(figure: hv.Layout, backend: str) -> list[tuple[str, str, list[str]]]:
    """Each panel's scales, and the texts of its legend."""
    found = drawn(figure, backend)
    if backend == "matplotlib":
        return [
            (
                axes.get_xscale(),
                axes.get_yscale(),
                [text.get_text() for text in axes.get_legend().get_texts()]
                if axes.get_legend()
                else [],
            )
            for axes in found.axes
            if axes.get_title()
        ]
    from bokeh.plotting import figure as bokeh_figure

    scales = {"LogScale": "log", "LinearScale": "linear"}
    return [
        (
            scales[type(plot.x_scale).__name__],
            scales[type(plot.y_scale).__name__],
            [item.label.value for legend in plot.legend if legend.visible for item in legend.items],
        )
        for plot in found.select({"type": bokeh_figure})
    ]


def test_every_collective_has_a_panel_with_both_axes_logarithmic(
    results: xr.Dataset, expected: xr.Dataset, backend: str
) -> None:
    figure = bandwidth_curves(results, expected)
    assert len(list(figure)) == len(_COLLECTIVES)
    found = _axes(figure, backend)
    assert [scales[:2] for scales in found] == [("log", "log")] * len(_COLLECTIVES)
    # Measured and predicted lines are told apart, once.
    legend, *others = [texts for _, _, texts in found if texts]
    # On paper one legend serves all panels; on a page each has its own.
    assert others == [legend] * (len(found) - 1 if backend == "bokeh" else 0)
    assert sorted(legend) == sorted(
        f"{label}, {how}"
        for how in ("measured", "predicted")
        for label in ("RDMA", "TCP/IP", "IPoIB")
        if not (how == "measured" and label == "IPoIB")
    )


def test_points_are_the_medians_with_their_intervals(
    results: xr.Dataset, expected: xr.Dataset, backend: str
) -> None:
    panel = next(iter(bandwidth_curves(results, expected)))
    # 2 x 7/8 of the size over 1.05 times the least time, at full scale.
    sizes = np.array(_SIZES)
    least = 1e-3 + 1e-8 * sizes
    busbw = 2 * 7 / 8 * sizes / (1.05 * least) * 1e-9 / _SCALE
    for label in _PROTOCOLS.values():
        curve = _curves(panel)[f"{label}, measured"]
        np.testing.assert_allclose(curve.dimension_values("size"), sizes / _SCALE)
        np.testing.assert_allclose(curve.dimension_values("busbw"), busbw)
    for bars in panel.traverse(lambda element: element, [hv.ErrorBars]):
        below, above = (bars.dimension_values(name) for name in ("below", "above"))
        np.testing.assert_allclose(busbw - below, busbw * 1.05 / 1.1)
        np.testing.assert_allclose(busbw + above, busbw * 1.05)


def test_predictions_are_broken_lines_of_the_same_colour(
    results: xr.Dataset, expected: xr.Dataset, backend: str
) -> None:
    panel = next(iter(bandwidth_curves(results, expected)))
    dash = {"matplotlib": "linestyle", "bokeh": "line_dash"}[backend]
    for protocol, label in _PROTOCOLS.items():
        measured, predicted = (
            _curves(panel)[f"{label}, {how}"] for how in ("measured", "predicted")
        )
        styles = [
            hv.Store.lookup_options(backend, curve, "style").kwargs
            for curve in (measured, predicted)
        ]
        assert [style["color"] for style in styles] == [protocol_colour(label)] * 2
        assert [style.get(dash) for style in styles] == [None, "dashed"]
        at = {"protocol": protocol, "gpus": 8, "collective": "all_reduce"}
        typical = expected["full_scale_busbw_GBps"].sel(at).squeeze()
        np.testing.assert_allclose(predicted.dimension_values("busbw"), typical)
        np.testing.assert_allclose(predicted.dimension_values("size"), np.array(_SIZES) / _SCALE)
    assert len(panel.traverse(lambda element: element, [hv.Area])) == 3


@pytest.mark.parametrize(
    ("gpus", "layout"), [(None, "world"), (2, "world"), (2, "rail"), (8, "node"), (8, "rail")]
)
def test_every_group_draws(
    results: xr.Dataset, expected: xr.Dataset, gpus: int | None, layout: str, backend: str
) -> None:
    figure = bandwidth_curves(results, expected, gpus=gpus, layout=layout)
    drawn(figure, backend)
    # What is predicted is among all ranks.
    areas = figure.traverse(lambda element: element, [hv.Area])
    assert bool(areas) == (layout == "world")
    texts = figure.traverse(lambda element: element, [hv.Text])
    # Two GPUs are one on each rail.
    assert len(texts) == (len(_COLLECTIVES) if (gpus, layout) == (2, "rail") else 0)
    titles = [hv.Store.lookup_options(backend, panel, "plot").kwargs["title"] for panel in figure]
    assert titles == [f"{name}, {gpus or 8} GPUs" for name in _COLLECTIVES]


def test_published_values_are_called_so(backend: str) -> None:
    selection = select_sweep("big-red-200", "paper")
    figure = bandwidth_curves(published_sweep(selection), predict_sweep(selection))
    (panel,) = figure
    assert set(_curves(panel)) == {"RDMA, published", "RDMA, predicted"}
    assert len(_curves(panel)["RDMA, published"]) == 12
    ((_, _, legend),) = _axes(figure, backend)
    assert sorted(legend) == ["RDMA, predicted", "RDMA, published"]


def test_predictions_draw_alone(expected: xr.Dataset, backend: str) -> None:
    assert bandwidths(expected) is expected
    figure = bandwidth_curves(expected)
    assert len(list(figure)) == len(_COLLECTIVES)
    drawn(figure, backend)


def test_what_was_not_run_says_why(backend: str) -> None:
    figure = bandwidth_curves(not_run({"cluster": "this machine has no GPU"}))
    (text,) = figure.traverse(lambda element: element, [hv.Text])
    assert text.data[2] == "not run here: cluster: this machine has no GPU"
    drawn(figure, backend)


def test_they_are_saved(results: xr.Dataset, expected: xr.Dataset, tmp_path: Path) -> None:
    written = save_figure(lambda: bandwidth_curves(results, expected), tmp_path / "curves")
    assert [path.suffix for path in written] == [".svg", ".png", ".csv"]
    assert min(path.stat().st_size for path in written[:2]) > 10_000
    again = save_figure(lambda: bandwidth_curves(results, expected), tmp_path / "again")
    assert written[0].read_bytes() == again[0].read_bytes()
