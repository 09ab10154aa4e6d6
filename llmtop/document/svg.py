"""Drawings of a document as SVG that needs nothing else. Every text in it is escaped here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from llmtop.document.cells import clean
from llmtop.document.model import AreaChart, Point, RooflinePlot

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 320, 60, 40, 14, 90
_CHART_HEIGHT = 200


def roofline_svg(plot: RooflinePlot) -> str:
    """Return FLOPs a byte against FLOP/s, both logarithmic, a circle for each point; "" without points."""
    if not plot.points or not plot.flops_per_s:
        return ""
    balance = max(plot.flops_per_s.values()) / plot.bytes_per_s
    xs, ys = [point.x for point in plot.points], [point.y for point in plot.points]
    plane = _Plane(
        x=(_decade(min(*xs, balance) / 2, down=True), _decade(max(*xs, balance) * 2)),
        y=(_decade(min(ys) / 2, down=True), _decade(max(*ys, *plot.flops_per_s.values()))),
    )
    heaviest = max(point.weight for point in plot.points)
    parts = [*plane.grid(), *plane.roofs(plot.bytes_per_s, plot.flops_per_s)]
    parts += [plane.point(point, heaviest) for point in plot.points]
    return _drawing("roofline", plot.title, _HEIGHT, parts)


def area_svg(chart: AreaChart) -> str:
    """Return two quantities over time as areas, with their scale and their names."""
    top = max(*chart.upper, *chart.lower, 1)
    bottom, right = _CHART_HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for values, opacity in ((chart.upper, 0.25), (chart.lower, 0.7)):
        parts.append(
            f'<polygon points="{_area(values, top)}" fill="#4c78a8" fill-opacity="{opacity}" stroke="none"/>'
        )
    parts.append(_line((_LEFT, bottom), (right, bottom), 0.8))
    parts += [
        f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{_text(chart.format_value(value))}</text>'
        for value, y in ((top, _TOP), (0, bottom))
    ]
    parts.append(f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{_text(chart.end)}</text>')
    for place, (name, opacity) in enumerate(zip(chart.names, (0.7, 0.25), strict=True)):
        x = _LEFT + 220 * place
        square = f'<rect x="{x}" y="{_CHART_HEIGHT - 14}" width="10" height="10" fill="#4c78a8"'
        parts.append(f'{square} fill-opacity="{opacity}"/>')
        parts.append(f'<text x="{x + 14}" y="{_CHART_HEIGHT - 5}">{_text(name)}</text>')
    return _drawing("area", chart.title, _CHART_HEIGHT, parts)


def _area(values: Sequence[int], top: int) -> str:
    """Corners of the area below the values, which are drawn as steps."""
    bottom, width = _CHART_HEIGHT - _BOTTOM, (_WIDTH - _RIGHT - _LEFT) / max(len(values), 1)
    corners = [(float(_LEFT), float(bottom))]
    for place, value in enumerate(values):
        y = bottom - value / top * (bottom - _TOP)
        corners += [(_LEFT + place * width, y), (_LEFT + (place + 1) * width, y)]
    corners.append((corners[-1][0], float(bottom)))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _drawing(name: str, title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg class="{name}" viewBox="0 0 {_WIDTH} {height}" role="img" width="{_WIDTH}" '
        f'font-family="sans-serif" font-size="11" fill="currentColor"><title>{_text(title)}</title>'
        + "".join(parts)
        + "</svg>"
    )


def _decade(value: float, down: bool = False) -> float:
    power = math.log10(value)
    return 10.0 ** (math.floor(power) if down else math.ceil(power))


def _text(value: str) -> str:
    return escape(clean(value), quote=True)


class _Plane:
    """Where FLOPs a byte (x) and FLOP/s (y) lie in the drawing."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = x, y

    def _at(self, x: float, y: float) -> tuple[float, float]:
        def part(value: float, ends: tuple[float, float]) -> float:
            return (math.log10(value) - math.log10(ends[0])) / (math.log10(ends[1]) - math.log10(ends[0]))

        return (
            _LEFT + part(x, self._x) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - part(y, self._y) * (_HEIGHT - _BOTTOM - _TOP),
        )

    def grid(self) -> list[str]:
        """Lines and numbers at the powers of ten."""
        parts = []
        for power in range(round(math.log10(self._x[0])), round(math.log10(self._x[1])) + 1):
            x, bottom = self._at(10.0**power, self._y[0])
            _, top = self._at(10.0**power, self._y[1])
            parts.append(_line((x, bottom), (x, top), 0.15))
            parts.append(f'<text x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="middle">{10.0**power:g}</text>')
        for power in range(round(math.log10(self._y[0])), round(math.log10(self._y[1])) + 1):
            left, y = self._at(self._x[0], 10.0**power)
            right, _ = self._at(self._x[1], 10.0**power)
            parts.append(_line((left, y), (right, y), 0.15))
            words = f"{10.0**power / 1e12:g}"
            parts.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{words}</text>')
        middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
        parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">FLOP a byte</text>')
        parts.append(f'<text x="{_LEFT}" y="10" text-anchor="end">TFLOP/s</text>')
        return parts

    def roofs(self, bytes_per_s: float, peaks: Mapping[str, float]) -> list[str]:
        """Return the memory's slope up to the highest peak, and each peak from there on."""
        parts = []
        first = max(self._x[0], self._y[0] / bytes_per_s)
        highest = max(peaks.values())
        begin, corner = self._at(first, first * bytes_per_s), self._at(highest / bytes_per_s, highest)
        parts.append(_line(begin, corner, 0.8))
        for dtype, rate in peaks.items():
            left, right = self._at(rate / bytes_per_s, rate), self._at(self._x[1], rate)
            parts.append(_line(left, right, 0.8))
            words = _text(f"{dtype} {rate / 1e12:.0f}")
            parts.append(f'<text x="{right[0] + 4:.1f}" y="{right[1] + 4:.1f}">{words}</text>')
        return parts

    def point(self, point: Point, heaviest: float) -> str:
        """Return one circle; its text is shown when the pointer is on it."""
        x, y = self._at(point.x, point.y)
        radius = max(2.5, 12 * math.sqrt(point.weight / heaviest))
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#4c78a8" fill-opacity="0.55" '
            f'stroke="#4c78a8"><title>{_text(point.text)}</title></circle>'
        )


def _line(a: tuple[float, float], b: tuple[float, float], opacity: float) -> str:
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"/>'
    )
