"""Page of hypothetical GPUs: the fastest within a power and area budget, and its bottleneck."""

# Panel's constructors have no types.
# mypy: disable-error-code="no-untyped-call, call-overload"

from dataclasses import dataclass
from functools import cache, partial

import holoviews as hv
import numpy as np
import pandas as pd
import panel as pn
import xarray as xr

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.technology import read_technology
from repro.errors import ReproError
from repro.explorer.page_state import draw_or_show_error, prepare_page
from repro.figures.predicted.hardware import bound_regions, fronts
from repro.predict.explore.hardware.design_cube import RATES, design_cube, pareto_front, with_budget
from repro.predict.explore.jobs.fused_plans import Training

_SIDEBAR_WIDTH = 340
_TRAINING = "gpt3-175b", 1024, 1536
_MEMORY_GB = (16.0, 32.0, 40.0, 80.0, 96.0, 141.0, 192.0, 288.0, 512.0, 1024.0)
_NETWORK_GBPS = (25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0)
_ABOUT = """
GPT-3 175B on 1,024 GPUs with 1,536 sequences per iteration, half precision and the links of NVL72.
All values are predicted; power is within a factor of two. White areas exceed the budget. The URL
stores the settings. [What the network costs](.)"""


@dataclass(frozen=True)
class Budget:
    """Limits of a GPU design, and its memory and port.

    Attributes
    ----------
    nm
        Silicon process node of `params/technology.yaml`, in nm.
    power_w, area_mm2
        Maximum power of a GPU and maximum area of its dies, in W and mm2.
    memory_gb, network_gbps
        Memory in GB, one of `_MEMORY_GB`; port in Gbit/s, one of `_NETWORK_GBPS`.
    """

    nm: float = 3.0
    power_w: int = 700
    area_mm2: int = 800
    memory_gb: float = 80.0
    network_gbps: float = 400.0


@cache
def designs(nm: float) -> xr.Dataset:
    """Return all designs in a process node with their power and area."""
    return with_budget(_cube(), read_technology(), nm)


@cache
def _cube() -> xr.Dataset:
    model, gpus, global_batch = _TRAINING
    return design_cube(
        Training(open_model(model), gpus, global_batch),
        read_technology(),
        peak_tflops=np.geomspace(50, 20_000, 50).tolist(),
        memory_gbytes_per_s=np.geomspace(250, 32_000, 40).tolist(),
        network_gbps=_NETWORK_GBPS,
        memory_gb=_MEMORY_GB,
    )


def affordable(budget: Budget) -> xr.Dataset:
    """Return designs with the budget's memory and port by compute and memory rate.

    The iteration time is NaN where a design exceeds the budget.

    Raises
    ------
    ReproError
        No design is within the budget.
    """
    found = designs(budget.nm).sel(memory_gb=budget.memory_gb, network_gbps=budget.network_gbps)
    within = (found.power_w <= budget.power_w) & (found.area_mm2 <= budget.area_mm2)
    within = within & found.iteration_time_s.notnull()
    if not bool(within.any()):
        least_w, least_mm2 = float(found.power_w.min()), float(found.area_mm2.min())
        raise ReproError(
            f"no design with {budget.memory_gb:g} GB in {budget.nm:g} nm is within "
            f"{budget.power_w} W and {budget.area_mm2} mm2; lowest power {least_w:.0f} W, smallest "
            f"area {least_mm2:.0f} mm2; fix: raise power or area, or reduce memory"
        )
    return found.assign(iteration_time_s=found.iteration_time_s.where(within))


def fastest(found: xr.Dataset) -> xr.Dataset:
    """Return the design of `affordable` with the shortest iteration."""
    return found.isel(found.iteration_time_s.argmin(["peak_tflops", "memory_gbytes_per_s"]))


@cache
def _fronts(area_mm2: int) -> dict[str, pd.DataFrame]:
    """Return the best designs by power for each node that has any within an area.

    They do not depend on the power slider, hence the cache.
    """
    found = {
        node.label: pareto_front(designs(node.nm), area_mm2) for node in read_technology().nodes
    }
    return {label: front for label, front in found.items() if len(front)}


def page() -> pn.viewable.Viewable:
    """Return the page of one browser session."""
    start = Budget()
    nodes = [node.nm for node in read_technology().nodes]
    widgets = {
        "nm": pn.widgets.Select(label="process node, nm", options=nodes, value=start.nm),
        "power_w": pn.widgets.IntSlider(
            label="power, W", start=100, end=2000, step=25, value=start.power_w
        ),
        "area_mm2": pn.widgets.IntSlider(
            label="die area, mm2", start=50, end=1600, step=25, value=start.area_mm2
        ),
        "memory_gb": pn.widgets.Select(
            label="memory, GB", options=list(_MEMORY_GB), value=start.memory_gb
        ),
        "network_gbps": pn.widgets.Select(
            label="network, Gbit/s",
            options=list(_NETWORK_GBPS),
            value=start.network_gbps,
        ),
    }
    prepare_page(widgets)
    return pn.FlexBox(
        pn.Column("# Hypothetical GPUs", *widgets.values(), _ABOUT, width=_SIDEBAR_WIDTH),
        pn.Column(
            pn.bind(_figures, **widgets),
            sizing_mode="stretch_width",
            styles={"flex": f"1 1 {_SIDEBAR_WIDTH}px", "min-width": "0"},
        ),
    )


def _figures(**setting: object) -> pn.viewable.Viewable:
    return draw_or_show_error(partial(_draw, Budget(**setting)))  # type: ignore[arg-type]


def _draw(budget: Budget) -> pn.viewable.Viewable:
    found = affordable(budget)
    best = fastest(found)
    regions = found.assign(bound=found.bound.where(found.iteration_time_s.notnull()))
    regions.bound.attrs = found.bound.attrs
    position = [(float(best.peak_tflops), float(best.memory_gbytes_per_s))]
    marked = bound_regions(regions, "memory_gbytes_per_s") * hv.Points(position).opts(
        color="black", marker="star", size=16
    )
    return pn.Column(
        f"**Fastest (star): {float(best.peak_tflops):,.0f} TFLOP/s, "
        f"{float(best.memory_gbytes_per_s):,.0f} GB/s, {float(best.power_w):.0f} W, "
        f"{float(best.area_mm2):.0f} mm2: {float(best.iteration_time_s):.1f} s per iteration. "
        f"A higher {list(RATES)[int(best.bound)]} rate would shorten it most.**",
        *(
            pn.pane.HoloViews(
                figure.opts(responsive=True, width=None, height=height),
                sizing_mode="stretch_width",
            )
            for figure, height in ((marked, 360), (fronts(_fronts(budget.area_mm2)), 390))
        ),
        sizing_mode="stretch_width",
    )
