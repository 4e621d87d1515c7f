"""State of the page: settings in the URL, accessibility, and error messages."""

# Panel's constructors have no types.
# mypy: disable-error-code="no-untyped-call"

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import partial

import panel as pn
import param
from bokeh.models import CustomJS

from repro.errors import ReproError

# Bokeh labels neither sliders' handles nor spinners' buttons, and keyboards cannot reach its
# scrolling texts. They are in shadow roots that Bokeh may draw again at any time, hence the
# interval.
_ACCESS = """
const label = (root) => {
  for (const handle of root.querySelectorAll(".noUi-handle"))
    handle.setAttribute("aria-label", root.querySelector(".bk-slider-title").textContent);
  for (const button of root.querySelectorAll(".bk-spin-btn"))
    button.setAttribute(
      "aria-label", button.matches(".bk-spin-btn-up") ? "increase" : "decrease");
  for (const text of root.querySelectorAll(".bk-panel-models-markup-HTML"))
    if (text.scrollWidth > text.clientWidth) text.tabIndex = 0;
  for (const part of root.querySelectorAll("*")) if (part.shadowRoot) label(part.shadowRoot);
};
setInterval(() => label(document), 500);
"""


# Bytes of a text in a URL, of which a few may decompress to megabytes.
_LONGEST = 1 << 20


class PackedText(param.Parameterized):
    """Text of a widget in compressed form: Panel would parse JSON or a number in a URL."""

    value = param.String()

    def __init__(self, widget: pn.widgets.TextAreaInput) -> None:
        super().__init__(value=_pack(widget.value or ""))
        widget.param.watch(lambda event: self.param.update(value=_pack(event.new)), "value")
        self.param.watch(lambda event: widget.param.update(value=_unpack(event.new)), "value")


def _pack(text: str) -> str:
    return urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode() if text else ""


def _unpack(packed: str) -> str:
    return _decompress(urlsafe_b64decode(packed)).decode() if packed else ""


def _decompress(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(data, _LONGEST)
    if not stream.eof:
        raise ValueError(f"incomplete, or longer than {_LONGEST} bytes")
    return text


def prepare_page(states: Mapping[str, pn.widgets.Widget | PackedText]) -> list[pn.pane.Alert]:
    """Synchronize states with URL parameters of their names, and make the page accessible.

    Returns
    -------
    list of Alert
        A line for each parameter of the URL that is not understood.
    """
    refused = sync_with_url(states)
    document = pn.state.curdoc
    assert document is not None
    document.js_on_event("document_ready", CustomJS(code=_ACCESS))
    return [pn.pane.Alert(one, alert_type="warning") for one in refused]


def sync_with_url(states: Mapping[str, pn.widgets.Widget | PackedText]) -> list[str]:
    """Set states from the URL's parameters, and write later values into the URL.

    Returns
    -------
    list of str
        Messages on parameters that a state does not accept.
    """
    location = pn.state.location
    assert location is not None
    refused: dict[str, str] = {}
    for name, state in states.items():
        default = state.value
        location.sync(state, {"value": name}, partial(_refuse, refused, name, state))
        # Panel would replace a value that is no choice by the first one.
        if isinstance(state, pn.widgets.Select) and state.value not in state.values:
            _refuse(refused, name, state, {"value": state.value})
            state.value = default
    return list(refused.values())


def _refuse(
    refused: dict[str, str],
    name: str,
    state: pn.widgets.Widget | PackedText,
    values: Mapping[str, object],
) -> None:
    """Clear a state whose parameter is null, as Panel writes an empty number; note any other."""
    if values["value"] == "null":
        state.param.update(value=None)
    else:
        refused[name] = f"URL: {name} is not understood: {values['value']!r}; its default is used"


def draw_or_show_error(draw: Callable[[], pn.viewable.Viewable]) -> pn.viewable.Viewable:
    """Return the result of `draw`, or the message of its error."""
    try:
        return draw()
    except ReproError as error:
        return pn.pane.Alert(str(error), alert_type="warning")
