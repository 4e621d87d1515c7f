"""State of the page: settings in the URL, accessibility, and error messages."""

# Panel's constructors have no types.
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable, Mapping

import panel as pn
from bokeh.models import CustomJS

from repro.errors import ReproError

# Bokeh gives sliders' handles no label, and keyboards cannot reach its scrolling texts. Both are in
# shadow roots that Bokeh may draw again at any time, hence the interval.
_ACCESS = """
const label = (root) => {
  for (const handle of root.querySelectorAll(".noUi-handle"))
    handle.setAttribute("aria-label", root.querySelector(".bk-slider-title").textContent);
  for (const text of root.querySelectorAll(".bk-panel-models-markup-HTML"))
    if (text.scrollWidth > text.clientWidth) text.tabIndex = 0;
  for (const part of root.querySelectorAll("*")) if (part.shadowRoot) label(part.shadowRoot);
};
setInterval(() => label(document), 500);
"""


def prepare_page(widgets: Mapping[str, pn.widgets.Widget]) -> None:
    """Synchronize widgets with URL parameters of their names, and make them accessible."""
    sync_with_url(widgets)
    document = pn.state.curdoc
    assert document is not None
    document.js_on_event("document_ready", CustomJS(code=_ACCESS))


def sync_with_url(widgets: Mapping[str, pn.widgets.Widget]) -> None:
    """Set widgets from the URL's parameters, and write later values into the URL."""
    location = pn.state.location
    assert location is not None
    for name, widget in widgets.items():
        location.sync(widget, {"value": name})


def draw_or_show_error(draw: Callable[[], pn.viewable.Viewable]) -> pn.viewable.Viewable:
    """Return the result of `draw`, or the message of its error."""
    try:
        return draw()
    except ReproError as error:
        return pn.pane.Alert(str(error), alert_type="warning")
