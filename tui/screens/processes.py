"""Processes on the GPUs: sort, filter, send a signal."""

from __future__ import annotations

from llmtop.model.snapshot import Process
from tui.core import keys
from tui.core.canvas import Placed
from tui.core.layout import Rect
from tui.core.prompt import Prompt
from tui.paint.rows import Row
from tui.panes import process_table as table
from tui.screens.base import LlmtopScreen
from tui.screens.signal import SignalScreen
from tui.state.process_ref import ProcessRef

_Name = tuple[int, str | None]


class ProcessesScreen(LlmtopScreen):
    """The table of processes: one line a process and GPU."""

    NAME = keys.PROCESSES
    CSS_PATH = "processes.tcss"

    def __init__(self) -> None:
        super().__init__()
        self._sorted_by = table.BY_MEMORY
        self._reverse = True
        self._wanted = ""
        self._chosen: _Name | None = None
        self._top = 0
        self._first_row = 0
        """The row of the screen that has the first process."""
        self._column_ends: list[tuple[int, int]] = []
        """For each title its last cell, and which of all columns it is of."""

    def _rows(self) -> list[Process]:
        snapshot = self.view.snapshot
        if snapshot is None:
            return []
        return table.rows_of(snapshot, self._sorted_by, reverse=self._reverse, wanted=self._wanted)

    def _position(self, rows: list[Process]) -> int:
        """Return where the chosen process stands now; the first if it is gone."""
        names = [_name(process) for process in rows]
        return names.index(self._chosen) if self._chosen in names else 0

    def parts(self, width: int, height: int) -> list[Placed]:
        """Titles and as many processes as fit round the chosen one."""
        placed, body = self.header_and_footer(width, height)
        theme, snapshot = self.cell_theme, self.view.snapshot
        rows = self._rows()
        at = self._position(rows)
        room = max(body.height - 2, 0)
        self._top = max(min(self._top, at, len(rows) - room), at - room + 1, 0)
        self.page_lines, self._first_row = max(room, 1), body.y + 2
        columns = table.plan(width - 1, self._sorted_by, snapshot)
        self._column_ends = table.title_ends(columns, width)
        lines = [self._summary(rows, width)]
        lines.append(table.titles(columns, self._sorted_by, width, theme, reverse=self._reverse))
        if snapshot is not None:
            beside = table.column_context(snapshot)
            for place, process in enumerate(rows[self._top : self._top + room], self._top):
                chosen = place == at
                lines.append(table.line(process, columns, beside, width, theme, chosen))
        lines += [Row(width).end(theme.palette.text) for _ in range(body.height - len(lines))]
        placed.append(Placed(Rect(0, body.y, width, body.height), lines[: body.height]))
        return placed

    def _summary(self, rows: list[Process], width: int) -> Row:
        palette = self.cell_theme.palette
        total = 0 if self.view.snapshot is None else len(self.view.snapshot.processes)
        row = Row(width).add(" processes", palette.strong)
        row.add(
            f" {self.cell_theme.glyphs.dot} {len(rows)}" + (f" of {total}" if len(rows) != total else ""),
            palette.dim,
        )
        if self._wanted:
            row.add(f" {self.cell_theme.glyphs.dot} with ", palette.dim).add(f'"{self._wanted}"', palette.text)
        if not rows:
            why = (
                "no process uses a GPU, and none is attached"
                if not total
                else "no process has these letters; change the filter with f"
            )
            row.add(f" {self.cell_theme.glyphs.dot} {why}", palette.dim)
        return row.end(palette.text)

    def target_process(self) -> ProcessRef:
        """Return the chosen process."""
        rows = self._rows()
        if not rows:
            return super().target_process()
        chosen = rows[self._position(rows)]
        return ProcessRef(chosen.pid, f"pid {chosen.pid}", by_alert=True)

    def move(self, step: int) -> None:
        """Choose the process that is `step` lines further."""
        rows = self._rows()
        if rows:
            self._chosen = _name(rows[min(max(self._position(rows) + step, 0), len(rows) - 1)])

    def searchable(self) -> list[str]:
        """Return pid, user and command of each process."""
        return [f"{one.pid} {one.user or ''} {one.command or ''}" for one in self._rows()]

    def position(self) -> int:
        """Return the line of the chosen process."""
        return self._position(self._rows())

    def show_line(self, place: int) -> None:
        """Choose the process that was found."""
        rows = self._rows()
        if place < len(rows):
            self._chosen = _name(rows[place])

    def wheel(self, direction: int, y: int) -> None:
        """Choose the process above or below."""
        self.action_move(direction)

    def click(self, x: int, y: int) -> None:
        """Choose the process under the pointer; on a title, sort by it, and again in the other direction."""
        if y == self._first_row - 1:
            column = next((index for end, index in self._column_ends if x <= end), None)
            if column == self._sorted_by:
                self.action_turn()
            elif column is not None:
                self.action_sort(column - self._sorted_by)
        elif y >= self._first_row and self._top + y - self._first_row < len(self._rows()):
            self.show_line(self._top + y - self._first_row)
            self.redraw()

    def action_sort(self, step: int) -> None:
        """Sort by another column; numbers from the largest, words from the first letter."""
        self._sorted_by = (self._sorted_by + step) % len(table.COLUMNS)
        column = table.COLUMNS[self._sorted_by]
        self._reverse = column.numeric and column.title not in ("pid", "GPU")
        self.redraw()

    def action_turn(self) -> None:
        """Sort in the other direction."""
        self._reverse = not self._reverse
        self.redraw()

    def action_filter(self) -> None:
        """Open the filter of the processes."""
        self.prompt = Prompt(
            "filter ", self._wanted, self._filter, self._on_filter, "letters in pid, user or command"
        )
        self.redraw()

    def _filter(self, text: str) -> None:
        self._wanted = text

    def _on_filter(self, kept: bool) -> None:
        if not kept:
            self._wanted = ""

    async def action_back(self) -> None:
        """Clear the filter; where there is none, go back."""
        if self._wanted:
            self._wanted = ""
            self.redraw()
        else:
            await self.llmtop.action_back()

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: without processes there is none to send a signal to."""
        snapshot = self.view.snapshot
        has_any = snapshot is not None and bool(snapshot.processes)
        return super().refused_actions() | (frozenset() if has_any else {"signal"})

    def action_signal(self) -> None:
        """Open the question for the signal to send to the chosen process."""
        rows = self._rows()
        if rows:
            self.app.push_screen(SignalScreen(rows[self._position(rows)]))
        else:
            self.notify("The list has no process to which a signal could be sent.")


def _name(process: Process) -> _Name:
    return process.pid, process.gpu_uuid
