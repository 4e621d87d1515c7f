"""Dot plots of a claim's values on one axis, as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _ROW, _LEFT, _RIGHT = 520, 22, 90, 30
_MARKS = {
    "published": '<path class="dot" d="M{x} {up} L{right} {y} L{x} {down} L{left} {y} Z"/>',
    "predicted": '<circle class="dot" cx="{x}" cy="{y}" r="5"/>',
    "testbed": '<rect class="dot" x="{left}" y="{up}" width="10" height="10"/>',
    "cluster": '<path class="dot" d="M{x} {up} L{right} {down} L{left} {down} Z"/>',
}


@dataclass(frozen=True)
class Dot:
    """Value of one source with its interval, in the unit of the plot."""

    source: str
    value: float
    interval: tuple[float, float] | None


def dot_plot(dots: Sequence[Dot], unit: str) -> str:
    """Return an SVG with a row per source, on an axis from zero."""
    ends = [end for dot in dots for end in (dot.value, *(dot.interval or ()))]
    low, high = min(0.0, *ends), 1.05 * max(*ends, 1e-9)

    def place(value: float) -> float:
        return float(round(_LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT), 1))

    height = _ROW * (len(dots) + 1)
    label = "; ".join(f"{dot.source} {dot.value:.3g}" for dot in dots)
    parts = [
        f'<svg class="dots" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label} {unit}">'
    ]
    for number, dot in enumerate(dots):
        x, y = place(dot.value), _ROW * number + _ROW // 2
        mark = _MARKS[dot.source].format(x=x, y=y, left=x - 5, right=x + 5, up=y - 5, down=y + 5)
        line = ""
        if dot.interval:
            start, end = map(place, dot.interval)
            line = f'<path class="interval" d="M{start} {y} H{end}"/>'
        parts.append(
            f'<text x="0" y="{y + 4}">{dot.source}</text><g class="{dot.source}">{line}{mark}</g>'
        )
    axis = height - _ROW
    parts.append(f'<path class="axis" d="M{_LEFT} {axis} H{_WIDTH - _RIGHT}"/>')
    for value in (low, high):
        anchor = "start" if value == low else "end"
        parts.append(
            f'<text x="{place(value)}" y="{axis + 15}" text-anchor="{anchor}">{value:.3g}</text>'
        )
    parts.append(f'<text x="{_WIDTH / 2}" y="{axis + 15}" text-anchor="middle">{unit}</text></svg>')
    return "".join(parts)
