"""All ranks, in a table that scrolls."""

from __future__ import annotations

import itertools

from llmtop.model.role_groups import roles_text
from llmtop.model.snapshot import Rank
from tui.core import keys
from tui.core.canvas import Placed
from tui.core.sorting import SortedTable
from tui.panes import rank_table
from tui.screens.base import LlmtopScreen
from tui.state.order import Order


class RanksScreen(SortedTable, LlmtopScreen):
    """The table of ranks over the whole screen."""

    NAME = keys.RANKS
    CSS_PATH = "ranks.tcss"

    def __init__(self) -> None:
        super().__init__()
        self._top = 0
        self._first_row = 0
        """The row of the screen that has the first line."""
        self._width, self._framed = 0, True

    def parts(self, width: int, height: int) -> list[Placed]:
        """Return the table from the first visible line on; its frame counts the lines."""
        placed, body = self.header_and_footer(width, height)
        room = max(body.height - 3, 1)
        self._width, self._framed = body.width, body.height >= 4
        self.page_lines = room
        self._first_row = body.y + (2 if body.height >= 4 else 1)
        count = len(rank_table.lines(self.view, self.view.rank_group))
        self._top = max(min(self._top, count - room), 0)
        rows = rank_table.paint(self.view, *body[2:], self.cell_theme, framed=body.height >= 4, top=self._top)
        return [*placed, Placed(body, rows)]

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: ranks without named parallel groups are not grouped."""
        return super().refused_actions() | (frozenset() if rank_table.roles(self.view) else {"next_group"})

    def action_next_group(self) -> None:
        """Group by the next role that ranks have; after the last one by none."""
        roles = rank_table.roles(self.view)
        if not roles:
            self.notify("No rank is in a named parallel group: no DeviceMesh names, no Megatron-Core groups.")
            return
        choices = ["", *roles]
        shown = self.view.rank_group if self.view.rank_group in choices else ""
        self.view.rank_group = choices[(choices.index(shown) + 1) % len(choices)]
        self._top = 0
        self.redraw()

    def move(self, step: int) -> None:
        """Choose the rank that is `step` lines further; it is the one whose steps are shown."""
        self._choose(self.position() + step, 1 if step > 0 else -1)

    def _choose(self, place: int, direction: int = 1) -> None:
        """Choose the rank at a line of the table, or beside it where that is the line of a job or a group."""
        lines = rank_table.lines(self.view, self.view.rank_group)
        if not lines:
            self.notify("No training is attached: start one with llmtop run -- COMMAND.")
            return
        place = min(max(place, 0), len(lines) - 1)
        after = range(place, len(lines)) if direction > 0 else range(place, -1, -1)
        found = next((one for one in [*after, *range(len(lines))] if isinstance(lines[one], Rank)), None)
        chosen = None if found is None else lines[found]
        if found is not None and isinstance(chosen, Rank):
            self.view.rank_pid = chosen.pid
            heads = itertools.takewhile(lambda line: not isinstance(line, Rank), lines)
            first = 0 if found == sum(1 for _ in heads) else found  # the first job and group stay in sight
            self._top = max(min(self._top, first), found - self.page_lines + 1)

    def position(self) -> int:
        """Return the line of the rank whose steps are shown."""
        shown = self.view.rank()
        lines = rank_table.lines(self.view, self.view.rank_group)
        return next(
            (i for i, one in enumerate(lines) if shown and isinstance(one, Rank) and one.pid == shown.pid), 0
        )

    def searchable(self) -> list[str]:
        """Return the text of each line: rank, pid, host, state, command."""
        return [
            f"rank {one.rank} {roles_text(one.roles)} pid {one.pid} {one.host} {one.state} {one.job or ''} "
            f"{one.command or ''}"
            if isinstance(one, Rank)
            else one.name
            for one in rank_table.lines(self.view, self.view.rank_group)
        ]

    def show_line(self, place: int) -> None:
        """Choose the rank that was found."""
        self._choose(place)

    def click(self, x: int, y: int) -> None:
        """Choose the rank under the pointer; on a title, sort by it, and again in the other direction."""
        place = self._top + y - self._first_row
        if y == self._first_row - 1:
            name = rank_table.title_at(self.view, x, self._width, framed=self._framed)
            if name:
                self.sort_by(name)
        elif y >= self._first_row and place < len(rank_table.lines(self.view, self.view.rank_group)):
            self._choose(place)
            self.redraw()

    @property
    def order(self) -> Order:
        """How the table is sorted; the view has it, so that it stays when the screen is left."""
        return self.view.rank_order

    @order.setter
    def order(self, order: Order) -> None:
        self.view.rank_order = order

    def usual_order(self) -> Order:
        """Return the order of the ranks."""
        return rank_table.USUAL_ORDER

    def sortable(self) -> list[str]:
        """Return the columns that are shown."""
        return (
            rank_table.sortable(self.view, self._width, framed=self._framed)
            if rank_table.lines(self.view, self.view.rank_group)
            else []
        )

    def descends(self, name: str) -> bool:
        """Return False for numbers that only name a rank, a GPU or a process."""
        return name not in ("rank", "GPU", "pid")

    def wheel(self, direction: int, y: int) -> None:
        """Choose the rank above or below."""
        self.action_move(direction)
