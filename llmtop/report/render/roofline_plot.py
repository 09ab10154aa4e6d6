"""The matrix products of a report under the roofs of its GPU, as a drawing in SVG that needs nothing else."""

from __future__ import annotations

import math
from html import escape

from llmtop.format import duration, printable
from llmtop.report.device_time import GemmTime, Roof
from llmtop.report.model import Report

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 320, 60, 40, 14, 90


def roofline_plot(report: Report) -> str:
    """FLOPs a byte against FLOP/s, both logarithmic, a circle for each size of product, its area by its time.

    Empty without sizes, or for a GPU whose peaks are not known. Every text in it is escaped.
    """
    points = [row for row in report.gemms if row.flops_per_byte and row.tflops_per_s > 0]
    roof = next((roof for roof in report.roofs if roof.bytes_per_s and roof.flops_per_s), None)
    types = {row.dtype for row in points if roof is not None and row.dtype in roof.flops_per_s}
    if roof is None or not roof.bytes_per_s or not points or not types:
        return ""
    peaks = {dtype: rate for dtype, rate in roof.flops_per_s.items() if dtype in types}
    balance = max(peaks.values()) / roof.bytes_per_s
    xs = [row.flops_per_byte or 1.0 for row in points]
    ys = [row.tflops_per_s * 1e12 for row in points]
    plane = _Plane(
        x=(_decade(min(*xs, balance) / 2, down=True), _decade(max(*xs, balance) * 2)),
        y=(_decade(min(ys) / 2, down=True), _decade(max(*ys, *peaks.values()))),
    )
    longest = max(row.seconds for row in points)
    parts = [*plane.grid(), *plane.roofs(roof.bytes_per_s, peaks)]
    parts += [plane.point(row, longest) for row in points]
    return (
        f'<svg class="roofline" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" width="{_WIDTH}" '
        f'font-family="sans-serif" font-size="11" fill="currentColor"><title>{_text(_title(roof))}</title>'
        + "".join(parts)
        + "</svg>"
    )


def _title(roof: Roof) -> str:
    return f"Roofline of {roof.name}: matrix products by size"


def _decade(value: float, down: bool = False) -> float:
    power = math.log10(value)
    return 10.0 ** (math.floor(power) if down else math.ceil(power))


def _text(value: str) -> str:
    return escape(printable(value, 400), quote=True)


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

    def roofs(self, bytes_per_s: float, peaks: dict[str, float]) -> list[str]:
        """The memory's slope up to the highest peak, and each peak from there on."""
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

    def point(self, row: GemmTime, longest: float) -> str:
        """One size of product; what it is, is said when the pointer is on it."""
        x, y = self._at(row.flops_per_byte or 1.0, row.tflops_per_s * 1e12)
        radius = max(2.5, 12 * math.sqrt(row.seconds / longest))
        batch = f"{row.batch} of " if row.batch > 1 else ""
        said = (
            f"{row.operator} {batch}{row.m} x {row.n} x {row.k} {row.dtype or ''}: "
            f"{row.tflops_per_s:.1f} TFLOP/s, {row.calls} calls of {duration(row.mean_us / 1e6)}"
        )
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#4c78a8" fill-opacity="0.55" '
            f'stroke="#4c78a8"><title>{_text(said)}</title></circle>'
        )


def _line(a: tuple[float, float], b: tuple[float, float], opacity: float) -> str:
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"/>'
    )
