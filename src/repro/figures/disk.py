"""Save figures as SVG and PNG, without a browser."""

from collections.abc import Callable
from pathlib import Path

import holoviews as hv
import hvplot
import matplotlib as mpl

from repro.atomic import replacing

# Without the time of drawing, so that the same data give the same bytes.
_METADATA: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".png": {}}


def save_figure(draw: Callable[[], hv.core.Dimensioned], path: Path) -> list[Path]:
    """Draw a figure for matplotlib and write `path` with the suffixes .svg and .png.

    `draw` is called after the backend is chosen, since hvplot fixes a figure's backend when it
    draws it. The same data give the same bytes.
    """
    hvplot.extension("matplotlib", logo=False)
    picture = hv.render(draw(), backend="matplotlib")
    written = []
    with mpl.rc_context({"svg.hashsalt": "repro", "figure.dpi": 100}):
        for suffix in (".svg", ".png"):
            target = path.with_suffix(suffix)
            with replacing(target) as temporary:
                picture.savefig(
                    temporary, format=suffix[1:], metadata=_METADATA[suffix], bbox_inches="tight"
                )
            written.append(target)
    return written
