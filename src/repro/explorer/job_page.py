"""Page of one training job: memory by stage, iteration by phase, and other networks."""

# Panel's constructors have no types.
# mypy: disable-error-code="no-untyped-call, call-overload"

from functools import partial
from typing import Any, get_args

import holoviews as hv
import panel as pn

from repro.catalog.jobs import Recompute, job_of, resolve
from repro.catalog.models.open_models import read_open_models
from repro.catalog.systems.gpus import read_gpus
from repro.explorer.page_state import PackedText, draw_or_show_error, prepare_page
from repro.figures.predicted.your_job import (
    changes_table,
    iteration_by_network,
    memory_by_stage,
    verdict,
)
from repro.predict.explore.jobs.estimate import (
    DOES_NOT_FIT,
    FITS,
    TIGHT,
    Change,
    JobEstimate,
    cheapest_fixes,
    estimate,
    other_networks,
)

_SIDEBAR_WIDTH = 340
# Longest text that can be pasted, in characters; Panel's default is 5,000.
_LONGEST_TEXT = 50_000
_NICS = (
    "1x10",
    *(f"{n}x{gbps}" for n in (1, 2, 4, 8) for gbps in (25, 50, 100, 200, 400, 800)),
)
_NOT_GIVEN = "not given"
_SIZES = {
    "gpus": "GPUs",
    "gpus_per_node": "GPUs per node",
    "tp": "tensor parallel size",
    "pp": "pipeline stages",
    "cp": "context parallel size",
    "ep": "expert parallel size",
    "vpp": "model chunks per stage",
    "micro_batch": "micro batch, sequences",
    "global_batch": "global batch, sequences",
    "seq": "sequence length, tokens",
}
_START = {"gpus": 64}
_ALERTS = {FITS: "success", TIGHT: "warning", DOES_NOT_FIT: "danger"}
_ABOUT = """
Fields that are not given are filled by rules, which the page lists; pasted arguments bring their
own plan. All values are predicted. The URL stores the job. [What the network costs](.)"""


class JobPage:
    """Widgets named after the fields of a job, and the figures that depend on them."""

    def __init__(self) -> None:
        self.model = pn.widgets.Select(
            label="model", options=list(read_open_models()), value="llama3.1-8b"
        )
        self.pasted = pn.widgets.TextAreaInput(
            label="or config.json, or Megatron arguments",
            placeholder="Paste the text here; it replaces the model above.",
            max_length=_LONGEST_TEXT,
            rows=4,
        )
        self.fields: dict[str, pn.widgets.Widget] = {
            "gpu": pn.widgets.Select(
                label="GPU", options=list(read_gpus()), value="h200-sxm-141gb"
            ),
            "nic": _choice("NICs per node x Gbit/s", _NICS),
            **{
                name: pn.widgets.IntInput(
                    label=label, start=1, value=_START.get(name), placeholder=_NOT_GIVEN
                )
                for name, label in _SIZES.items()
            },
            "precision": _choice("precision", ("bf16", "fp8", "mxfp8", "nvfp4")),
            "recompute": _choice("recomputation", get_args(Recompute)),
            "zero": _choice("ZeRO stage", (0, 1, 2, 3)),
        }

    @property
    def widgets(self) -> dict[str, pn.widgets.Widget]:
        """Widgets by name."""
        return {"model": self.model, "pasted": self.pasted, **self.fields}

    def layout(self) -> pn.viewable.Viewable:
        """Return the widgets next to the figures."""
        return pn.FlexBox(
            pn.Column("# Your job", *self.widgets.values(), _ABOUT, width=_SIDEBAR_WIDTH),
            pn.Column(
                pn.bind(_answer, **self.widgets),
                sizing_mode="stretch_width",
                styles={"flex": f"1 1 {_SIDEBAR_WIDTH}px", "min-width": "0"},
            ),
        )


def page() -> pn.viewable.Viewable:
    """Return the page of one browser session."""
    opened = JobPage()
    refused = prepare_page({**opened.widgets, "pasted": PackedText(opened.pasted)})
    return pn.Column(*refused, opened.layout())


def _choice(label: str, values: tuple[object, ...]) -> pn.widgets.Select:
    """Return a choice whose first entry leaves the field out."""
    return pn.widgets.Select(label=label, options={_NOT_GIVEN: "", **{str(v): v for v in values}})


def estimate_fields(model: str, pasted: str, **fields: Any) -> JobEstimate:
    """Estimate the job of the widgets' values; a field that is None or empty is not given.

    Raises
    ------
    ReproError
        The model is not understood, a value is not allowed, or the job cannot run.
    """
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    return estimate([resolve(job_of({**given, "model": pasted.strip() or model}))])[0]


def _answer(**values: Any) -> pn.viewable.Viewable:
    return draw_or_show_error(partial(_draw, **values))


def _draw(**values: Any) -> pn.viewable.Viewable:
    one = estimate_fields(**values)
    networks = other_networks(one)
    fixes = [] if one.memory_verdict == FITS else cheapest_fixes(one)
    return pn.Column(
        pn.pane.Alert(verdict(one), alert_type=_ALERTS[one.memory_verdict]),
        _figure(memory_by_stage(one, width=None), 420),
        *_fixes(fixes, one),
        _figure(iteration_by_network(one, networks, width=None), 240 + 50 * len(networks)),
        f"Not given, and filled: {'; '.join(one.job.notes)}.",
        sizing_mode="stretch_width",
    )


def _fixes(fixes: list[Change], one: JobEstimate) -> list[object]:
    """Return the table of changes that make a job fit, under a heading."""
    if not fixes:
        return []
    table = pn.pane.DataFrame(
        changes_table(fixes, one).round(3),
        sizing_mode="stretch_width",
        styles={"overflow-x": "auto"},
    )
    return ["Changes that make it fit, least GPU time per token first:", table]


def _figure(drawn: hv.Overlay, height: int) -> pn.viewable.Viewable:
    bars = hv.opts.Bars(height=height)
    whole = hv.opts.Overlay(height=height, legend_position="bottom", legend_cols=1)
    return pn.pane.HoloViews(drawn.opts(bars, whole), sizing_mode="stretch_width")
