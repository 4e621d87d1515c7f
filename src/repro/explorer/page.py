"""Page of one iteration and its parallel plans, with widgets whose values the URL stores."""

# Panel's constructors have no types.
# mypy: disable-error-code="no-untyped-call, call-overload"

from functools import partial

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd
import panel as pn

from repro.catalog.studies.experiments import experiment
from repro.explorer.page_state import draw_or_show_error, prepare_page
from repro.explorer.view import EXPERIMENTS, View, breakdown, default_view, plans
from repro.figures.experiments.scaling import PHASE_COLOURS
from repro.figures.palette import PURPLE
from repro.figures.predicted.what_if import plans_table
from repro.predict.explore.jobs.plans import describe

_SIDEBAR_WIDTH = 340
_ROWS = 12
_COLOURS = {
    **PHASE_COLOURS,
    "forward receive": PURPLE,
    "backward receive": "#AA4499",
    "send": "#DDCC77",
    "embedding sync": "#882255",
}
_ABOUT = """
Bars are milliseconds of one iteration at full scale. *Predicted, as measured* uses the experiment's
batch and the protocol's rate and latency; *predicted, as set* uses the sliders. All plans are
predicted. The URL stores the settings. [Your job](job)"""


class Page:
    """Widgets and the figures that depend on them."""

    def __init__(self) -> None:
        start = default_view(EXPERIMENTS[0])
        entry = experiment(start.experiment)
        profile = entry.profiles["default"]
        self.experiment = pn.widgets.Select(
            label="experiment",
            options={experiment(name).title: name for name in EXPERIMENTS},
            value=start.experiment,
        )
        self.model = pn.widgets.Select(
            label="model", options=list(profile.models), value=start.model
        )
        self.protocol = pn.widgets.Select(
            label="protocol", options=list(entry.protocols), value=start.protocol
        )
        self.gpus = pn.widgets.Select(label="GPUs", options=list(profile.gpus), value=start.gpus)
        self.gbps = pn.widgets.FloatSlider(
            label="link rate, Gbit/s", start=0.5, end=400, step=0.5, value=start.gbps
        )
        self.latency_us = pn.widgets.FloatSlider(
            label="latency, µs", start=0.5, end=100, step=0.5, value=start.latency_us
        )
        self.sequences = pn.widgets.IntSlider(
            label="sequences per GPU", start=1, end=64, value=start.sequences
        )
        # Another configuration starts with its own rate, latency and batch.
        for widget in (self.experiment, self.model, self.protocol, self.gpus):
            widget.param.watch(self._reset, "value")

    @property
    def widgets(self) -> dict[str, pn.widgets.Widget]:
        """Widgets by the field of `View` that they set, choices before the sliders they reset."""
        return {name: getattr(self, name) for name in View.__dataclass_fields__}

    def layout(self) -> pn.viewable.Viewable:
        """Return the widgets next to the figures."""
        widgets = self.widgets
        # Plans are slow to compute, so they are drawn once the user releases a slider. They use
        # each widget's `value`: the URL and a change of protocol do not set `value_throttled`.
        released = {
            name: getattr(widget.param, "value_throttled", widget.param.value)
            for name, widget in widgets.items()
        }

        def current_plans(**_: object) -> pn.viewable.Viewable:
            return _plans(**{name: widget.value for name, widget in widgets.items()})

        return pn.FlexBox(
            pn.Column("# What the network costs", *widgets.values(), _ABOUT, width=_SIDEBAR_WIDTH),
            pn.Column(
                pn.bind(_iteration, **widgets),
                pn.bind(current_plans, **released),
                sizing_mode="stretch_width",
                styles={"flex": f"1 1 {_SIDEBAR_WIDTH}px", "min-width": "0"},
            ),
        )

    def _reset(self, _: object) -> None:
        view = default_view(
            self.experiment.value, self.model.value, self.protocol.value, self.gpus.value
        )
        for name in ("gbps", "latency_us", "sequences"):
            self.widgets[name].value = getattr(view, name)


def page() -> pn.viewable.Viewable:
    """Return the page of one browser session."""
    opened = Page()
    refused = prepare_page(opened.widgets)
    return pn.Column(*refused, opened.layout())


def _iteration(**setting: object) -> pn.viewable.Viewable:
    return draw_or_show_error(partial(_draw_iteration, View(**setting)))  # type: ignore[arg-type]


def _plans(**setting: object) -> pn.viewable.Viewable:
    return draw_or_show_error(partial(_draw_plans, View(**setting)))  # type: ignore[arg-type]


def _draw_iteration(view: View) -> pn.viewable.Viewable:
    bars, origin = breakdown(view)
    # hvplot draws the first bar at the bottom.
    drawn = (
        bars[::-1]
        .hvplot.barh(
            stacked=True,
            color=[_COLOURS[phase] for phase in bars.columns],
            title=f"Iteration by phase, ms ({origin})",
            xlabel="",
            ylabel="",
            group_label="phase",
            value_label="time",
            legend="bottom",
            responsive=True,
            height=460,
        )
        .opts(legend_opts={"orientation": "vertical"})
    )
    return pn.pane.HoloViews(drawn, sizing_mode="stretch_width")


def _draw_plans(view: View) -> pn.viewable.Viewable:
    table = plans(view)
    front = table[table["pareto"]]
    points = [_points(part) for part in (table[~table["pareto"]], front)]
    drawn = points[0].opts(color="#BBBBBB", size=4) * points[1].opts(
        color="gpus", cmap="viridis", size=8, colorbar=True, clabel="GPUs"
    )
    drawn = drawn.opts(
        title="Plans by time and memory; coloured: Pareto-optimal in time, memory, cost",
        responsive=True,
        height=340,
    )
    return pn.Column(
        pn.pane.HoloViews(drawn, sizing_mode="stretch_width"),
        f"The fastest {min(_ROWS, len(front))} of {len(front)} Pareto-optimal plans:",
        pn.pane.DataFrame(
            plans_table(front.head(_ROWS)),
            sizing_mode="stretch_width",
            styles={"overflow-x": "auto"},
        ),
        sizing_mode="stretch_width",
    )


def _points(table: pd.DataFrame) -> hv.Points:
    rows = pd.DataFrame(
        {
            "iteration, ms": 1e3 * table["iteration_time_s"].to_numpy(),
            "memory, GB": table["memory_bytes"].to_numpy() / 1e9,
            "gpus": table.index.get_level_values("gpus"),
            "GPU s per sequence": table["gpu_s_per_sequence"].to_numpy(),
            "plan": describe(table.index),
        }
    )
    points = hv.Points(rows, ["iteration, ms", "memory, GB"], list(rows.columns[2:]))
    return points.opts(tools=["hover"], logx=True)
