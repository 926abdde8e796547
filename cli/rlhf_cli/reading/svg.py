"""Small SVG charts over episodes, drawn without any library so that the report needs no network to be read.

Colours are CSS classes (`s0` ... of `report.css`), so one chart reads well on a light and on a dark page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: More points than this are averaged in buckets: a screen has no more columns, and the page stays small.
MAX_POINTS = 400

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 40, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: `points` are (x, y), by growing x; `style` is the number of its CSS class; "" has no legend."""

    name: str
    points: Sequence[tuple[float, float]]
    style: int


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that cover [low, high]: first <= low, last >= high."""
    if not (math.isfinite(low) and math.isfinite(high)) or high < low:
        raise ValueError(f"ticks: found [{low}, {high}], expected finite bounds in order")
    size = max(abs(low), abs(high))
    # Closer than a float can be cut into steps: as good as one value.
    if high - low <= max(1e-9 * size, 1e-300):
        low, high = low - 0.1 * size, high + max(0.1 * size, 1e-300 if size else 1.0)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def thinned(points: Sequence[tuple[float, float]], most: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most `most` points: neighbours are averaged; a series that is short enough comes back as it is."""
    size = -(-len(points) // most)
    if size <= 1:
        return list(points)
    buckets = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in b) / len(b), sum(y for _, y in b) / len(b)) for b in buckets]


def number(value: float) -> str:
    """A number as people write it on an axis or in a table: about four significant digits, no exponent if short."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:.4g}"


def line_chart(
    title: str, unit: str, series: Sequence[Series], *, from_zero: bool = False, integer: bool = False
) -> str:
    """An `<svg>` with one line per series over the episode number. Empty series are left out; none gives a note.

    `unit` names the y axis, `from_zero` puts 0 on it, `integer` keeps its ticks whole.
    """
    drawn = [Series(name=s.name, points=thinned(_finite(s.points)), style=s.style) for s in series]
    drawn = [s for s in drawn if s.points]
    if not drawn:
        return _frame(title, f'<text class="note" x="{_WIDTH / 2}" y="{_HEIGHT / 2}">nothing measured</text>')
    ys = [y for s in drawn for _, y in s.points]
    y_ticks = ticks(min(*ys, 0.0) if from_zero else min(ys), max(ys))
    if integer:
        y_ticks = [float(i) for i in range(math.floor(y_ticks[0]), math.ceil(max(y_ticks[-1], 1)) + 1)]
        y_ticks = y_ticks[:: max(1, len(y_ticks) // 6)]
    axes = _Axes.over([x for s in drawn for x, _ in s.points], y_ticks)
    body = [axes.grid(unit)]
    for s in drawn:
        path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in s.points)
        body.append(f'<polyline class="line s{s.style}" points="{path}"/>')
        if len(s.points) <= 120:
            body.extend(
                f'<circle class="dot s{s.style}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="2.4">'
                f"<title>episode {number(x)}: {escape(s.name)} {number(y)} {escape(unit)}</title></circle>"
                for x, y in s.points
            )
    body.append(_legend([(s.name, s.style) for s in drawn]))
    return _frame(title, "".join(body))


def stacked_bars(title: str, unit: str, xs: Sequence[float], parts: Sequence[Series]) -> str:
    """An `<svg>` with one bar per episode, cut into `parts` from the bottom up (each with a point for each x)."""
    layers = [thinned(p.points, most=150) for p in parts]
    columns = [x for x, _ in thinned([(x, 0.0) for x in xs], most=150)]
    if not columns:
        return line_chart(title, unit, [])
    totals = [sum(layer[i][1] for layer in layers) for i in range(len(columns))]
    axes = _Axes.over([columns[0] - 0.5, columns[-1] + 0.5], ticks(0.0, max(totals)))
    gap = (axes.x(columns[-1]) - axes.x(columns[0])) / max(1, len(columns) - 1) if len(columns) > 1 else 60.0
    width = max(1.0, min(gap * 0.78, 60.0))
    body = [axes.grid(unit)]
    for i, x in enumerate(columns):
        bottom = 0.0
        for part, layer in zip(parts, layers, strict=True):
            value = max(layer[i][1], 0.0)
            top = axes.y(bottom + value)
            body.append(
                f'<rect class="bar s{part.style}" x="{axes.x(x) - width / 2:.1f}" y="{top:.1f}" '
                f'width="{width:.1f}" height="{max(axes.y(bottom) - top, 0):.1f}">'
                f"<title>episode {number(x)}: {escape(part.name)} {number(value)} {escape(unit)}</title></rect>"
            )
            bottom += value
    body.append(_legend([(p.name, p.style) for p in parts]))
    return _frame(title, "".join(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Maps data to the drawing, whose y grows downwards."""

    x_low: float
    x_high: float
    y_ticks: Sequence[float]

    @staticmethod
    def over(xs: Sequence[float], y_ticks: Sequence[float]) -> "_Axes":
        low, high = min(xs), max(xs)
        return _Axes(x_low=low, x_high=high if high > low else low + 1, y_ticks=y_ticks)

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self, unit: str) -> str:
        lines = [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{self.y(t):.1f}" y2="{self.y(t):.1f}"/>'
            f'<text class="tick y" x="{_LEFT - 8}" y="{self.y(t) + 4:.1f}">{number(t)}</text>'
            for t in self.y_ticks
        ]
        whole = {round(t) for t in ticks(self.x_low, self.x_high, 8) if self.x_low <= t <= self.x_high}
        lines.extend(
            f'<text class="tick x" x="{self.x(t):.1f}" y="{_HEIGHT - _BOTTOM + 17}">{t}</text>'
            for t in sorted(whole)
            if self.x_low <= t <= self.x_high
        )
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        lines.append(f'<text class="axis" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}">episode</text>')
        lines.append(f'<text class="axis" transform="translate(12 {middle}) rotate(-90)">{escape(unit)}</text>')
        return "".join(lines)


def _legend(entries: Sequence[tuple[str, int]]) -> str:
    """Names beside their colours, from the right end of the title's line leftwards."""
    drawn, right = [], float(_WIDTH - _RIGHT)
    for name, style in reversed([entry for entry in entries if entry[0]]):
        left = right - 6.6 * len(name) - 16
        drawn.append(
            f'<rect class="bar s{style}" x="{left:.0f}" y="10" width="10" height="10" rx="2"/>'
            f'<text class="legend" x="{left + 14:.0f}" y="19">{escape(name)}</text>'
        )
        right = left - 12
    return "".join(drawn)


def _frame(title: str, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)} by episode">'
        f'<text class="title" x="4" y="19">{escape(title)}</text>{body}</svg>'
    )


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]
