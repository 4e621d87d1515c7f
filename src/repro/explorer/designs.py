"""The page of GPUs that do not exist: the fastest within a power and an area, and what binds it."""

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
from repro.explorer.page_state import open_in_browser, or_why_not
from repro.figures.predicted.hardware import bound_regions, fronts
from repro.predict.explore.hardware.design_cube import RATES, design_cube, pareto_front, with_budget
from repro.predict.explore.hardware.generations import Training

_WIDGETS = 340
_TRAINING = "gpt3-175b", 1024, 1536
_MEMORY_GB = (16.0, 32.0, 40.0, 80.0, 96.0, 141.0, 192.0, 288.0, 512.0, 1024.0)
_NETWORK_GBPS = (25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 6400.0)
_ABOUT = """
GPT-3 175B on 1,024 of them, 1,536 sequences an iteration, half precision, links as NVL72's. All of
it is predicted; power is within a factor of two. What costs too much is left white. The address of
this page holds what is set. [What the network costs](.)"""


@dataclass(frozen=True)
class Budget:
    """What a GPU may cost and has.

    Attributes
    ----------
    nm
        Its node, one of `params/technology.yaml`.
    power_w, area_mm2
        Of one GPU, at most; of its dies.
    memory_gb, network_gbps
        Its memory and its port, of `_MEMORY_GB` and `_NETWORK_GBPS`.
    """

    nm: float = 3.0
    power_w: int = 700
    area_mm2: int = 800
    memory_gb: float = 80.0
    network_gbps: float = 400.0


@cache
def designs(nm: float) -> xr.Dataset:
    """All designs in a node, with what they cost."""
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
    """Designs with a memory and a port by computing and memory rate; no time where one costs more.

    Raises
    ------
    ReproError
        None is affordable.
    """
    found = designs(budget.nm).sel(memory_gb=budget.memory_gb, network_gbps=budget.network_gbps)
    within = (found.power_w <= budget.power_w) & (found.area_mm2 <= budget.area_mm2)
    within = within & found.iteration_time_s.notnull()
    if not bool(within.any()):
        least_w, least_mm2 = float(found.power_w.min()), float(found.area_mm2.min())
        raise ReproError(
            f"no design with {budget.memory_gb:g} GB in {budget.nm:g} nm takes {budget.power_w} W "
            f"and {budget.area_mm2} mm2 or less; the most frugal takes {least_w:.0f} W, the "
            f"smallest {least_mm2:.0f} mm2"
        )
    return found.assign(iteration_time_s=found.iteration_time_s.where(within))


def fastest(found: xr.Dataset) -> xr.Dataset:
    """The design of `affordable` with the shortest iteration."""
    return found.isel(found.iteration_time_s.argmin(["peak_tflops", "memory_gbytes_per_s"]))


@cache
def _fronts(area_mm2: int) -> dict[str, pd.DataFrame]:
    """The best design for each power by node, where an area allows any; a slider of power moves
    none of them."""
    found = {
        node.label: pareto_front(designs(node.nm), area_mm2) for node in read_technology().nodes
    }
    return {label: front for label, front in found.items() if len(front)}


def page() -> pn.viewable.Viewable:
    """One visitor's page."""
    start = Budget()
    nodes = [node.nm for node in read_technology().nodes]
    widgets = {
        "nm": pn.widgets.Select(label="node, nm", options=nodes, value=start.nm),
        "power_w": pn.widgets.IntSlider(
            label="power, W", start=100, end=2000, step=25, value=start.power_w
        ),
        "area_mm2": pn.widgets.IntSlider(
            label="area of dies, mm2", start=50, end=1600, step=25, value=start.area_mm2
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
    open_in_browser(widgets)
    return pn.FlexBox(
        pn.Column("# GPUs that do not exist", *widgets.values(), _ABOUT, width=_WIDGETS),
        pn.Column(
            pn.bind(_shown, **widgets),
            sizing_mode="stretch_width",
            styles={"flex": f"1 1 {_WIDGETS}px", "min-width": "0"},
        ),
    )


def _shown(**setting: object) -> pn.viewable.Viewable:
    return or_why_not(partial(_draw, Budget(**setting)))  # type: ignore[arg-type]


def _draw(budget: Budget) -> pn.viewable.Viewable:
    found = affordable(budget)
    best = fastest(found)
    regions = found.assign(bound=found.bound.where(found.iteration_time_s.notnull()))
    regions.bound.attrs = found.bound.attrs
    where = [(float(best.peak_tflops), float(best.memory_gbytes_per_s))]
    marked = bound_regions(regions, "memory_gbytes_per_s") * hv.Points(where).opts(
        color="black", marker="star", size=16
    )
    return pn.Column(
        f"**The fastest (star): {float(best.peak_tflops):,.0f} TFLOP/s, "
        f"{float(best.memory_gbytes_per_s):,.0f} GB/s, {float(best.power_w):.0f} W, "
        f"{float(best.area_mm2):.0f} mm2: {float(best.iteration_time_s):.1f} s an iteration. "
        f"More {list(RATES)[int(best.bound)]} rate would help it most.**",
        *(
            pn.pane.HoloViews(
                figure.opts(responsive=True, width=None, height=height),
                sizing_mode="stretch_width",
            )
            for figure, height in ((marked, 360), (fronts(_fronts(budget.area_mm2)), 390))
        ),
        sizing_mode="stretch_width",
    )
