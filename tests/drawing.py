"""Drawing a figure as notebooks and files do."""

from typing import Any

import holoviews as hv


def drawn(figure: hv.core.Dimensioned, backend: str) -> Any:
    """The backend's own figure; `hv.render` would draw it twice with matplotlib."""
    return hv.renderer(backend).get_plot(figure).state
