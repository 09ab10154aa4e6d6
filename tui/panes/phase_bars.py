"""A step's phases as one proportional bar: each has a colour, a pattern and, where there is room, its name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from llmtop import format as fmt
from llmtop.model.snapshot import Phase, Rank
from llmtop.naming.own_phases import DATALOAD, OUTSIDE, phase_label
from llmtop.naming.phase_names import Role, role_of
from tui.paint.charts import split
from tui.paint.rows import CellTheme, Row

Clock = Literal["host", "gpu"]

_USUAL: dict[Role, int] = {
    "compute": 0, "backward": 1, "h2d": 2, "optimizer": 3, "input": 4, "comm": 5, "sync": 6, "step": 0
}  # fmt: skip
"""Colors of common roles, the same from run to run and on every screen, whatever the phase is called."""


_PLAIN = ("forward", "backward", "optimizer", "h2d", DATALOAD)
"""Names with the color of their role, even after `zero_grad` or `loss`, which do the same."""
REST = -1
"""Stands for a colour where time is in no phase."""


class Part(Struct, frozen=True):
    """One top-level phase, with its place in the table of colours."""

    phase: Phase
    color: int
    """Or `REST`."""

    def seconds(self, clock: Clock) -> float | None:
        """Return how long the phase took by the clock asked for; None when that was not measured."""
        return self.phase.host_seconds if clock == "host" else self.phase.gpu_seconds


def colors_of(names: Sequence[str]) -> dict[str, int]:
    """Return the index of each phase in the table of colours, by the role of its name.

    The first phase of a role has the role's colour; the others, and those with unknown names, get the remaining
    colours in order.
    """
    found: dict[str, int] = {}
    for name in sorted(names, key=lambda name: name not in _PLAIN):
        color = 7 if "checkpoint" in name else _USUAL.get(role_of(name))
        if color is not None and color not in found.values() and name not in found:
            found[name] = color
    free = [color for color in range(8) if color not in found.values()] or list(range(8))
    for place, name in enumerate([name for name in dict.fromkeys(names) if name not in found]):
        found[name] = free[place % len(free)]
    return found


_colors_of = lru_cache(maxsize=64)(colors_of)
"""The same for the names of one training, which every pane of a frame asks for; not to be changed."""


def _top(rank: Rank) -> list[Phase]:
    return [phase for phase in rank.phases if "/" not in phase.name]


def colors(rank: Rank) -> dict[str, int]:
    """Return the same for the top-level phases of a training."""
    return _colors_of(tuple([phase.name for phase in _top(rank)]))


def parts(rank: Rank) -> list[Part]:
    """Return the top-level phases in the order in which they run. Nested ones lie inside these and count once."""
    known = colors(rank)
    return [Part(phase, known[phase.name]) for phase in _top(rank)]


def letters(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each phase, the first of its name that no other one has; time in none has a dot."""
    found: dict[str, str] = {OUTSIDE: "·"}
    for name in names:
        if name not in found:
            clean = [char for char in fmt.printable(name).lower() if char.isascii() and char.isalnum()]
            found[name] = next((char for char in [*clean, *"0123456789"] if char not in found.values()), "?")
    return found


def block(row: Row, letter: str, length: int, color: int, theme: CellTheme) -> None:
    """Append one phase's part of a bar, which begins with its letter.

    Args:
        row: to append to.
        letter: of the phase, or "·".
        length: cells; nothing is appended for 0 or less.
        color: index into the theme's phase colours, or `REST` for time in no phase. Without colours it selects a
            pattern.
        theme: colours and glyphs of this terminal.
    """
    palette, glyphs = theme.palette, theme.glyphs
    if length <= 0:
        return
    if color == REST:
        row.add(letter if letter == "·" else letter[:length], palette.rest).add(" " * (length - 1), palette.rest)
    elif palette.depth != "mono" and not glyphs.ascii:
        row.add(letter + " " * (length - 1), palette.phase_bars[color])
    else:
        row.add(letter + glyphs.fills[color] * (length - 1), palette.phases[color])


def with_untimed(rank: Rank, shown: Sequence[Part]) -> list[Part]:
    """These and, last, the time in none of them, where it is known: together they are the mean step."""
    if rank.outside_seconds is None or not shown:
        return list(shown)
    return [*shown, Part(Phase(name=OUTSIDE, host_seconds=rank.outside_seconds), REST)]


def step_seconds(rank: Rank, shown: Sequence[Part], clock: Clock | None = None) -> float:
    """Return the mean step from start to start, or all phases where they are longer: by one clock, or by either.

    Both bars are drawn to the scale of the latter. GPU times are not known of every step, so where steps differ
    their means may be longer than the mean step.
    """
    typical = rank.step_seconds_mean or rank.step_seconds_p50 or rank.step_seconds or 0.0
    clocks: tuple[Clock, ...] = ("host", "gpu") if clock is None else (clock,)
    sums = [sum(part.seconds(one) or 0.0 for part in shown) for one in clocks]
    return max(typical, *sums)


def bar(
    row: Row,
    shown: Sequence[Part],
    clock: Clock,
    total: float,
    width: int,
    theme: CellTheme,
    *,
    names: bool = True,
    outside: float | None = None,
    whole: float | None = None,
) -> None:
    """Draw the phases by one clock over `width` cells that stand for `total` seconds.

    Args:
        names: whether phases are labelled where there is room.
        whole: seconds that shares are of; `total` if not given.
        outside: seconds in no phase, by the host's clock, where these are the rest of the bar.
    """
    palette, glyphs, of = theme.palette, theme.glyphs, whole or total
    seconds = [part.seconds(clock) or 0.0 for part in shown]
    cells = split(seconds, total, width)
    filled = palette.depth != "mono" and not glyphs.ascii
    known = letters([part.phase.name for part in shown])
    for part, length, spent in zip(shown, cells, seconds, strict=True):
        if length <= 0:
            continue
        label = _label(part.phase.name, fmt.percent(100 * spent / of), length) if names else ""
        if not label:
            block(row, known[part.phase.name], length, part.color, theme)
        elif filled:
            row.add(label.center(length), palette.phase_bars[part.color])
        else:
            row.add(f" {label} ".center(length, glyphs.fills[part.color]), palette.phases[part.color])
    rest = max(width - sum(cells), 0)
    blank = max(rest - split([outside], total, width)[0], 0) if outside and of < total else 0
    rest -= blank
    label = _label(phase_label(OUTSIDE), fmt.percent(100 * outside / of), rest) if names and outside else ""
    shade = glyphs.shade if names else " "
    row.add(f" {label} ".center(rest, shade) if label and rest > len(label) + 1 else shade * rest, palette.rest)
    row.add(" " * blank, palette.text)


def _label(name: str, share: str, room: int) -> str:
    clean = fmt.printable(name)
    if len(clean) + len(share) + 3 <= room:
        return f"{clean} {share}"
    if len(clean) + 2 <= room:
        return clean
    return ""
