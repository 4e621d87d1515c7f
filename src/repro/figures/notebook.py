"""How results and figures look in a notebook: without a network, and folded."""

from typing import Literal

import holoviews as hv
import hvplot
import xarray as xr
from bokeh.embed import components
from bokeh.resources import Resources
from IPython import get_ipython
from IPython.display import HTML, display
from IPython.utils.capture import capture_output

from repro.figures.disk import panels_html, separate_panels
from repro.results.folded import folded_html

# The core draws every figure here; widgets, tables and formulas are other files.
_SCRIPTS = Resources(mode="inline", components=["bokeh"])
# Of the output that holds them: a page that has the scripts already leaves it out.
LOADS_SCRIPTS = {"loads_scripts": True}


def show(backend: Literal["bokeh", "matplotlib"]) -> None:
    """Draw figures with a backend from here on, and show datasets folded.

    The scripts that figures of bokeh need become output of the cell that calls this, once.
    """
    with capture_output(stdout=False, stderr=False):
        hvplot.extension(backend, logo=False)
    shell = get_ipython()
    if shell is not None:
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type(xr.Dataset, folded_html)
        shell.display_formatter.mimebundle_formatter.for_type(hv.core.Dimensioned, _bundle)
    if backend == "bokeh":
        # Not what extensions would have loaded from files beside the page.
        scripts = "".join(f"<script>{script}</script>" for script in _SCRIPTS.js_raw)
        display(HTML(scripts), metadata=LOADS_SCRIPTS)  # type: ignore[no-untyped-call]


def _bundle(figure: hv.core.Dimensioned, **_: object) -> dict[str, str]:
    """A figure as HTML that asks for nothing but the scripts above."""
    if hv.Store.current_backend == "bokeh":
        plots, titles = separate_panels(figure)
        script, places = components(plots)
        html = panels_html(places, titles, [plot.width or 0 for plot in plots]) + script
    else:
        html = hv.renderer(hv.Store.current_backend).html(figure)
    return {"text/html": html, "text/plain": repr(figure)}
