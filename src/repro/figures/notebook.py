"""Display of results and figures in notebooks: without a network, and collapsed."""

from typing import Literal

import holoviews as hv
import hvplot
import xarray as xr
from bokeh.embed import components
from bokeh.resources import Resources
from IPython import get_ipython
from IPython.display import HTML, display
from IPython.utils.capture import capture_output

from repro.figures.export import panels_html, separate_panels
from repro.results.folded import folded_html

# The core draws every figure of this package; widgets, tables and formulas are other files.
_SCRIPTS = Resources(mode="inline", components=["bokeh"])
# Metadata of the output with the scripts: a page that has them already leaves it out.
LOADS_SCRIPTS = {"loads_scripts": True}


def show(backend: Literal["bokeh", "matplotlib"]) -> None:
    """Choose the backend of the figures drawn after this call, and collapse datasets.

    The scripts of Bokeh's figures become output of the cell that calls this, once.
    """
    with capture_output(stdout=False, stderr=False):
        hvplot.extension(backend, logo=False)
    shell = get_ipython()
    if shell is not None:
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type(xr.Dataset, folded_html)
        shell.display_formatter.mimebundle_formatter.for_type(hv.core.Dimensioned, _bundle)
    if backend == "bokeh":
        # Extensions would load files next to the page.
        scripts = "".join(f"<script>{script}</script>" for script in _SCRIPTS.js_raw)
        display(HTML(scripts), metadata=LOADS_SCRIPTS)  # type: ignore[no-untyped-call]


def _bundle(figure: hv.core.Dimensioned, **_: object) -> dict[str, str]:
    """Return a figure as HTML that loads no other scripts."""
    if hv.Store.current_backend == "bokeh":
        plots, titles = separate_panels(figure)
        script, places = components(plots)
        html = panels_html(places, titles, [plot.width or 0 for plot in plots]) + script
    else:
        html = hv.renderer(hv.Store.current_backend).html(figure)
    return {"text/html": html, "text/plain": repr(figure)}
