"""What pages share: an address that brings a setting back, access for all, why nothing is drawn."""

# Panel's constructors have no types.
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable, Mapping

import panel as pn
from bokeh.models import CustomJS

from repro.errors import ReproError

# What Bokeh leaves out for those who use a keyboard or do not see: names of sliders' handles, and a
# way into what scrolls. Both are in the shadow of their widgets, which may be drawn anew.
_ACCESS = """
const mend = (root) => {
  for (const handle of root.querySelectorAll(".noUi-handle"))
    handle.setAttribute("aria-label", root.querySelector(".bk-slider-title").textContent);
  for (const text of root.querySelectorAll(".bk-panel-models-markup-HTML"))
    if (text.scrollWidth > text.clientWidth) text.tabIndex = 0;
  for (const part of root.querySelectorAll("*")) if (part.shadowRoot) mend(part.shadowRoot);
};
setInterval(() => mend(document), 500);
"""


def open_in_browser(widgets: Mapping[str, pn.widgets.Widget]) -> None:
    """Take what the page's address has into the widgets of these names, write later settings into
    it, and let everybody reach them."""
    keep_in_address(widgets)
    document = pn.state.curdoc
    assert document is not None
    document.js_on_event("document_ready", CustomJS(code=_ACCESS))


def keep_in_address(widgets: Mapping[str, pn.widgets.Widget]) -> None:
    """Take what the page's address has into the widgets, and write later settings into it."""
    location = pn.state.location
    assert location is not None
    for name, widget in widgets.items():
        location.sync(widget, {"value": name})


def or_why_not(draw: Callable[[], pn.viewable.Viewable]) -> pn.viewable.Viewable:
    """What `draw` gives, or the line that says why it cannot."""
    try:
        return draw()
    except ReproError as error:
        return pn.pane.Alert(str(error), alert_type="warning")
