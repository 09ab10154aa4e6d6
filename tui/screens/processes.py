"""Processes on the GPUs: sort, filter, send a signal."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from llmtop.model.snapshot import Process
from tui.core import keys
from tui.core.canvas import Board, Placed
from tui.core.layout import Rect
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

    def compose(self) -> ComposeResult:
        """The table, and a line to type the filter into."""
        yield Board(self.redraw)
        yield Input(placeholder="letters in pid, user or command; enter keeps, escape clears", id="filter")

    def _rows(self) -> list[Process]:
        snapshot = self.view.snapshot
        if snapshot is None:
            return []
        return table.rows_of(snapshot, self._sorted_by, reverse=self._reverse, wanted=self._wanted)

    def _position(self, rows: list[Process]) -> int:
        """Where the chosen process stands now; the first if it is gone."""
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
        columns = table.plan(width - 1, self._sorted_by, snapshot)
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
            why = "no process uses a GPU, and none is attached" if not total else "none has these letters"
            row.add(f" {self.cell_theme.glyphs.dot} {why}", palette.dim)
        return row.end(palette.text)

    def target_process(self) -> ProcessRef:
        """The chosen process."""
        rows = self._rows()
        if not rows:
            return super().target_process()
        chosen = rows[self._position(rows)]
        return ProcessRef(chosen.pid, f"pid {chosen.pid}", by_alert=True)

    def action_move(self, step: int) -> None:
        """Choose the process that is `step` lines further."""
        rows = self._rows()
        if rows:
            self._chosen = _name(rows[min(max(self._position(rows) + step, 0), len(rows) - 1)])
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
        """Open the line for the filter."""
        line = self.query_one(Input)
        line.display = True
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._wanted = event.value
        self.redraw()

    def on_input_submitted(self) -> None:
        """Keep the filter and give the keys back to the table."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one(Input).display = False
        self.set_focus(None)

    async def action_back(self) -> None:
        """Clear the filter while it is typed, else go back."""
        line = self.query_one(Input)
        if line.display:
            line.value = ""
            self._close_filter()
        else:
            await self.llmtop.action_back()

    def action_signal(self) -> None:
        """Ask which signal to send to the chosen process."""
        rows = self._rows()
        if rows:
            self.app.push_screen(SignalScreen(rows[self._position(rows)]))
        else:
            self.notify("There is no process here to send a signal to.")


def _name(process: Process) -> _Name:
    return process.pid, process.gpu_uuid
