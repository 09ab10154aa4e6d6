"""A step's phases as one proportional bar: each has a colour, a pattern and, where there is room, its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from llmtop import format as fmt
from llmtop.snapshot import Phase, Rank
from llmtop.whole_steps import OUTSIDE
from tui.paint.charts import split
from tui.paint.rows import Look, Row

Clock = Literal["host", "gpu"]

_USUAL = {
    "forward": 0, "prefill": 0, "backward": 1, "decode": 1, "h2d": 2, "copy": 2, "to_device": 2,
    "optimizer": 3, "optim": 3, "dataload": 4, "data": 4, "communication": 5, "comm": 5, "allreduce": 5,
    "eval": 6, "checkpoint": 7,
}  # fmt: skip
"""Phases that most trainings have keep their colour from run to run."""


REST = -1
"""Stands for a colour where time is in no phase."""


class Part(Struct, frozen=True):
    """One top-level phase, with its place in the table of colours."""

    phase: Phase
    color: int
    """Or `REST`."""

    def seconds(self, clock: Clock) -> float | None:
        """How long the phase took by the clock asked for; None when that was not measured."""
        return self.phase.host_seconds if clock == "host" else self.phase.gpu_seconds


def parts(rank: Rank) -> list[Part]:
    """The top-level phases in the order in which they run. Nested ones lie inside these and count once."""
    top = [phase for phase in rank.phases if "/" not in phase.name]
    taken = {_USUAL[phase.name] for phase in top if phase.name in _USUAL}
    free = [color for color in range(8) if color not in taken] or list(range(8))
    found, following = [], 0
    for phase in top:
        color = _USUAL.get(phase.name)
        if color is None:
            color, following = free[following % len(free)], following + 1
        found.append(Part(phase, color))
    return found


def listed(rank: Rank, shown: Sequence[Part]) -> list[Part]:
    """These and, last, the time in none of them, where it is known: together they are the mean step."""
    if rank.outside_seconds is None or not shown:
        return list(shown)
    return [*shown, Part(Phase(name=OUTSIDE, host_seconds=rank.outside_seconds), REST)]


def step_seconds(rank: Rank, shown: Sequence[Part]) -> float:
    """What a whole bar stands for: the mean step from start to start, or all phases where they are longer."""
    typical = rank.step_seconds_mean or rank.step_seconds_p50 or rank.step_seconds or 0.0
    sums = [sum(part.seconds(clock) or 0.0 for part in shown) for clock in ("host", "gpu")]
    return max(typical, *sums)


def bar(
    row: Row,
    shown: Sequence[Part],
    clock: Clock,
    total: float,
    width: int,
    look: Look,
    *,
    names: bool = True,
    outside: float | None = None,
) -> None:
    """Draw the phases by one clock over `width` cells that stand for `total` seconds.

    Args:
        names: whether phases are labelled where there is room.
        outside: seconds in no phase, by the host's clock, where these are the rest of the bar.
    """
    palette, glyphs = look.palette, look.glyphs
    seconds = [part.seconds(clock) or 0.0 for part in shown]
    cells = split(seconds, total, width)
    filled = palette.depth != "mono" and not glyphs.ascii
    for part, length, spent in zip(shown, cells, seconds, strict=True):
        if length <= 0:
            continue
        pattern = glyphs.fills[part.color]
        share = fmt.percent(100 * spent / total)
        label = _label(part.phase.name, share, length) if names else ""
        if filled:
            row.add(label.center(length), palette.phase_bars[part.color])
        else:
            row.add(
                f" {label} ".center(length, pattern) if label else pattern * length, palette.phases[part.color]
            )
    rest = max(width - sum(cells), 0)
    label = _label(OUTSIDE, fmt.percent(100 * outside / total), rest) if names and outside else ""
    shade = glyphs.shade if names else " "
    row.add(f" {label} ".center(rest, shade) if label and rest > len(label) + 1 else shade * rest, palette.rest)


def _label(name: str, share: str, room: int) -> str:
    clean = fmt.printable(name)
    if len(clean) + len(share) + 3 <= room:
        return f"{clean} {share}"
    if len(clean) + 2 <= room:
        return clean
    return ""
