"""A capture of Python stacks: the tree of each thread, which folds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from llmtop import format as fmt
from llmtop.errors import LlmtopError, UnusableInput
from llmtop.stacks.model import StackReport
from tui.core import keys
from tui.core.board_screen import BoardScreen
from tui.paint.document import paragraph_rows
from tui.paint.rows import Row
from tui.panes import flame
from tui.screens.scrolling import ScrollingScreen


class FlameScreen(ScrollingScreen):
    """Sampled stacks, the path that most samples took unfolded."""

    NAME = keys.FLAME
    CSS_PATH = "report.tcss"

    def __init__(self, path: Path) -> None:
        """Show a capture of stacks.

        Args:
            path: its folder, or a file of folded stacks.
        """
        super().__init__()
        self.path = path
        self._report: StackReport | None = None
        self._refusal = ""
        self._opened: set[flame.Path] = set()
        self._chosen: flame.Path | None = None
        self._waiting = False
        self._places: list[flame.Path] = []
        """Which node each line after the title is of."""
        self._cursor = 0
        self._first_line = 0
        """The line of the first thread."""

    def on_mount(self) -> None:
        """Read the stacks in a thread."""
        self.in_background(partial(_read, self.path), self._show, "llmtop-flame")

    def _show(self, found: StackReport | LlmtopError) -> None:
        if isinstance(found, LlmtopError):
            self._refusal = str(found)
        else:
            self._report = found
            self._opened = flame.initially_opened(found)
        self.redraw()

    def command(self) -> str:
        """Return the command that shows the same in a shell."""
        return f"llmtop report {self.path}"

    def lines(self, width: int) -> list[Row]:
        """Paint the threads and what of them is unfolded."""
        theme, report = self.cell_theme, self._report
        self._places = []
        if report is None:
            said = self._refusal or f"reading {self.path} …"
            return [Row(width), *paragraph_rows(said, "warning" if self._refusal else "dim", width, theme)]
        rows = flame.title(report, self.path.name, width, theme)
        titles = len(rows)
        rows.append(Row(width).add(f"   {'all':>6}{'self':>7}", theme.palette.dim))
        for path, process, thread in flame.threads(report, waiting=self._waiting):
            self._places.append(path)
            opened = path in self._opened
            rows.append(
                flame.thread_line(process, thread, width, theme, chosen=path == self._chosen_path(), opened=opened)
            )
            for shown in flame.visible_lines(thread.tree, path, self._opened, thread.samples):
                self._places.append(shown.path)
                rows.append(
                    flame.frame_line(
                        shown,
                        width,
                        theme,
                        chosen=shown.path == self._chosen_path(),
                        opened=shown.path in self._opened,
                    )
                )
        chosen = self._chosen_path()
        self._first_line = titles + 1
        self._cursor = titles + 1 + (self._places.index(chosen) if chosen in self._places else 0)
        hidden = sum(len(process.threads) for process in report.processes) - len(
            list(flame.threads(report, waiting=self._waiting))
        )
        if hidden:
            rows.append(
                Row(width).add(f"   and {fmt.counted(hidden, 'waiting thread')}; w shows them", theme.palette.dim)
            )
        return rows

    def _chosen_path(self) -> flame.Path:
        return self._chosen if self._chosen is not None else (0, 0)

    def keep_in_sight(self, room: int, count: int) -> None:
        """Scroll so that the chosen frame can be seen."""
        seen = room - 1 if count > room else room
        first = 0 if self._cursor <= 2 else self._cursor
        self.top = max(min(self.top, first), self._cursor - seen + 1)

    def move(self, step: int) -> None:
        """Choose the frame that is `step` lines further."""
        if self._places:
            self.found_line = None
            at = self._places.index(self._chosen_path()) if self._chosen_path() in self._places else 0
            self._chosen = self._places[min(max(at + step, 0), len(self._places) - 1)]

    def action_page(self, share: float) -> None:
        """Choose the frame that is so many pages further."""
        BoardScreen.action_page(self, share)

    def action_edge(self, direction: int) -> None:
        """Choose the first frame (-1) or the last one (1)."""
        BoardScreen.action_edge(self, direction)

    def wheel(self, direction: int, y: int) -> None:
        """Choose a frame further up or down."""
        self.action_move(direction)

    def show_line(self, place: int) -> None:
        """Choose the frame of a line that was found."""
        super().show_line(place)
        if self._first_line <= place < self._first_line + len(self._places):
            self._chosen = self._places[place - self._first_line]

    def click_line(self, place: int) -> None:
        """Choose the frame under the pointer; on the chosen one, unfold or fold it."""
        number = place - self._first_line
        if 0 <= number < len(self._places):
            if self._places[number] == self._chosen_path():
                self.action_go()
            self._chosen = self._places[number]
            self.redraw()

    def action_go(self) -> None:
        """Unfold the chosen frame, or fold it."""
        self.action_fold(1)

    def action_fold(self, step: int) -> None:
        """Unfold the chosen frame (1; again: fold it), or fold it (-1; folded: go to its caller)."""
        at = self._chosen_path()
        if step > 0 and at not in self._opened:
            self._opened.add(at)
        elif at in self._opened:
            self._opened.discard(at)
        elif len(at) > 2:
            self._chosen = at[:-1]
        self.redraw()

    def action_whole(self) -> None:
        """Show or hide the threads that wait, and llmtop's own."""
        self._waiting = not self._waiting
        self.redraw()


def _read(path: Path) -> StackReport | LlmtopError:
    from llmtop.analysis.load_stacks import load_stacks

    try:
        found = load_stacks([path])
    except LlmtopError as error:
        return error
    return found if found is not None else UnusableInput(f"{path} holds no Python stacks")
