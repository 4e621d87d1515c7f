"""What several figures share: panels of stacked bars, a panel per model, and labels."""

from collections.abc import Mapping

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import xarray as xr

from repro.catalog.protocols import read_transports
from repro.catalog.trainable import trainable_models
from repro.results.store import why_not_run

WIDTH, HEIGHT = 460, 320
# Okabe and Ito's palette, which colour-blind readers can tell apart.
MODEL_COLOURS = ("#0072B2", "#56B4E9", "#D55E00", "#009E73")
LEGEND_WIDTH = 150
_FIGURE_SIZE = 190


def stacked_panels(times_s: xr.DataArray, colours: Mapping[str, str]) -> hv.Layout:
    """Stacked bars of an iteration's parts by GPUs and protocol, a panel per model.

    Parameters
    ----------
    times_s
        Seconds at full scale (source, model, protocol, gpus, part), one source.
    colours
        By part, in the order of the stack; parts that are not here are not shown.
    """
    names = model_names(times_s)
    return panels(
        [
            # One legend serves all, beside a panel with nothing to its right.
            _stack(times_s.sel(model=name), colours, legend=number == min(1, len(names) - 1))
            for number, name in enumerate(names)
        ]
    )


def _stack(times_s: xr.DataArray, colours: Mapping[str, str], *, legend: bool) -> hv.Element:
    frame = (1e3 * times_s.squeeze("source", drop=True)).rename("ms")
    table = frame.transpose("gpus", "protocol", "part").to_dataframe()["ms"].unstack("part")
    table = table[list(colours)].dropna()
    labels = protocol_labels(times_s)
    table.index = [f"{gpus} {labels[protocol]}" for gpus, protocol in table.index]
    table.index.name = "GPUs and protocol"
    return table.hvplot.bar(
        stacked=True,
        color=list(colours.values()),
        title=model_labels()[times_s["model"].item()],
        xlabel="",
        ylabel="iteration, ms at full scale",
        rot=60,
        legend="right" if legend else False,
        width=WIDTH + (LEGEND_WIDTH if legend else 0),
        height=HEIGHT,
    )


def panels(drawn: list[hv.Element]) -> hv.Layout:
    """Panels two by two."""
    layout = hv.Layout(drawn).cols(2)
    if hv.Store.current_backend == "matplotlib":
        layout.opts(fig_size=_FIGURE_SIZE, sublabel_format="", backend="matplotlib")
    return layout


def option(value: object, *, matplotlib: str, bokeh: str) -> dict[str, object]:
    """An option that the backends name differently, for the one that draws."""
    return options(matplotlib={matplotlib: value}, bokeh={bokeh: value})


def options(*, matplotlib: dict[str, object], bokeh: dict[str, object]) -> dict[str, object]:
    """Those of the backend that draws."""
    return matplotlib if hv.Store.current_backend == "matplotlib" else bokeh


def panel_size(*, legend: bool) -> dict[str, object]:
    """Options for a panel's size, with room for a legend beside it."""
    return options(
        matplotlib={"aspect": WIDTH / HEIGHT},
        bokeh={"width": WIDTH + (LEGEND_WIDTH if legend else 0), "height": HEIGHT},
    )


def not_run_here(results: xr.Dataset) -> hv.Layout:
    """The reasons why nothing was, in the figure's place."""
    return hv.Layout([hv.Text(0.5, 0.5, f"not run here: {why_not_run(results)}")])


def model_names(results: xr.Dataset | xr.DataArray) -> list[str]:
    """The models of results, in their order."""
    return [str(name) for name in results["model"].values]


def model_labels() -> dict[str, str]:
    """The names of models in figures, by their names in datasets."""
    return {name: entry.label for name, entry in trainable_models().items()}


def protocol_labels(results: xr.Dataset | xr.DataArray) -> dict[str, str]:
    """The names in figures of the protocols that were run, by their names in datasets.

    What has no name, such as the GPUs of one machine, is called as in the dataset.
    """
    known = {name: entry.label for name, entry in read_transports().items()}
    return {str(name): known.get(str(name), str(name)) for name in results["protocol"].values}
