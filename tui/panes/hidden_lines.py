"""The line that sums up the GPUs and ranks for which the table has no room."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from llmtop import format as fmt
from tui.paint.rows import CellTheme, Row
from tui.paint.text_width import cell_len
from tui.panes.node_table import Entry


def paint(hidden: Sequence[Entry], shown: Sequence[Entry], loud: int, width: int, theme: CellTheme) -> Row:
    """Return the line that sums up those for which there is no room.

    Args:
        hidden: the lines without a row.
        shown: those that have one.
        loud: how many of the hidden ones have an alert.
        width: of the line.
        theme: how to draw.
    """
    palette = theme.palette
    text = f"   +{len(hidden)} more{_summed_up(hidden, shown)}"
    if loud:
        text += f", {loud} with an alert"
    row = Row(width).add(text, palette.warning if loud else palette.dim)
    key = f" {theme.glyphs.dot} r: all ranks"
    if any(entry.rank is not None for entry in hidden) and cell_len(key) < row.free_cells:
        row.add(key, palette.dim)
    return row.end(palette.text)


def _summed_up(hidden: Sequence[Entry], shown: Sequence[Entry]) -> str:
    """Return a summary of the hidden lines: ranks that do not run, then alike to all others, or their range."""
    alike, ranges = True, []
    for name, unit, value in _COMPARED:
        values = _finite(map(value, hidden))
        if not values:
            continue
        usual = median(_finite(map(value, [*hidden, *shown])))
        least, most = min(values), max(values)
        alike = alike and usual - least <= ALIKE * usual and most - usual <= ALIKE * usual
        span = (
            fmt.number(least)
            if round(least) == round(most)
            else f"{fmt.number(least)}\N{EN DASH}{fmt.number(most)}"
        )
        ranges.append(f"{name} {span} {unit}")
    stopped = Counter(entry.rank.state for entry in hidden if entry.rank and entry.rank.state != "running")
    states = [f"{count} {state.upper()}" for state, count in stopped.items()]
    within = f"within {100 * ALIKE:.0f} %"
    if states:
        ranges = ([f"values {within}"] if alike else ranges) if ranges else []
        return ": " + ", ".join([*states, *ranges])
    if not ranges:
        return ""
    return f", all {within}" if alike else ": " + ", ".join(ranges)


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _power_share(entry: Entry) -> float | None:
    gpu = entry.gpu
    if gpu is None or entry.again or gpu.power_watts is None or not gpu.power_limit_watts:
        return None
    return 100 * gpu.power_watts / gpu.power_limit_watts


def _utilization(entry: Entry) -> float | None:
    return None if entry.gpu is None or entry.again else entry.gpu.util_pct


def _step_ms(entry: Entry) -> float | None:
    seconds = None if entry.rank is None else entry.rank.step_seconds_p50 or entry.rank.step_seconds
    return None if seconds is None else 1e3 * seconds


ALIKE = 0.05
"""Share of the median of all lines within which lines count as alike."""
_COMPARED: tuple[tuple[str, str, Callable[[Entry], float | None]], ...] = (
    ("util", "%", _utilization),
    ("power", "% of the limit", _power_share),
    ("step", "ms", _step_ms),
)
