"""The captures of this folder: open one, compare any two, mark a baseline, delete, keep the newest."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Literal

from llmtop import format as fmt
from llmtop.capture import capture_list as capture_store
from llmtop.capture.base import folder
from llmtop.capture.capture_list import StoredCapture
from llmtop.errors import LlmtopError
from llmtop.report_kinds.kinds import kind_named
from tui.core import keys
from tui.core.canvas import Placed
from tui.core.columns import Column
from tui.core.layout import Rect
from tui.core.sorting import SortedTable
from tui.paint.rows import Row
from tui.panes import capture_list
from tui.screens import kernels, report_picker
from tui.screens.base import LlmtopScreen
from tui.screens.report_picker import Loaded
from tui.state.order import Order

KEPT_AT_FIRST = 5
"""How many captures are proposed to be kept."""


_OF_ONE = frozenset({"go", "mark_first", "kernels", "compare", "baseline", "delete", "keep"})
"""Actions that need a capture."""


class CapturesScreen(SortedTable, LlmtopScreen):
    """One line a capture, the newest first; below, what there is to say of the chosen one."""

    NAME = keys.CAPTURES
    CSS_PATH = "report.tcss"

    def __init__(self, parent: Path | None = None) -> None:
        """Show the captures of a folder.

        Args:
            parent: the folder; None: llmtop-captures here.
        """
        super().__init__()
        self._given = parent
        self._newest_first: list[StoredCapture] = []
        self._captures: list[StoredCapture] | None = None
        """The same as they are listed; None until they have been read."""
        self._baseline: Path | None = None
        self._chosen: Path | None = None
        self._first: Path | None = None
        """The one that another is to be compared with."""
        self._asks: Literal["", "delete", "keep"] = ""
        self._keep = KEPT_AT_FIRST
        self._top = 0
        self._first_row = 0
        """The row of the screen that has the first line of the list."""
        self._columns: list[Column[StoredCapture]] = []
        """Columns that are shown."""

    @property
    def _place(self) -> Path:
        """The folder; the demo's is its own."""
        prepared = self.llmtop.prepared
        return self._given or (capture_store.default_parent() if prepared is None else prepared.parent)

    def on_mount(self) -> None:
        """Load the captures in the background: reading a hundred folders takes a moment."""
        self._load_captures()

    def on_screen_resume(self) -> None:
        """Load again: a report may have marked a baseline, or a capture may have ended."""
        self._load_captures()
        self.redraw()

    def _load_captures(self) -> None:
        self.in_background(partial(_all, self._place), self._show, "llmtop-listing")

    def _show(self, found: tuple[list[StoredCapture], Path | None]) -> None:
        self._newest_first, self._baseline = found
        self._captures = capture_list.in_order(self._newest_first, self.shown_order())
        self.redraw()

    def usual_order(self) -> Order:
        """Return the newest first."""
        return capture_list.USUAL_ORDER

    def sortable(self) -> list[str]:
        """Return the columns that are shown."""
        return [column.name for column in self._columns] if self._captures else []

    def descends(self, name: str) -> bool:
        """Return False for words, which begin with their first letter."""
        return all(column.numeric or column.name == "taken" for column in self._columns if column.name == name)

    def sort_rows(self, order: Order) -> None:
        chosen = self._capture()
        self._chosen = None if chosen is None else chosen.path
        self._captures = capture_list.in_order(self._newest_first, order)
        super().sort_rows(order)

    # --- painting ---------------------------------------------------------------------------------------------

    def parts(self, width: int, height: int) -> list[Placed]:
        """Return a title, the list, and below it the chosen one or what is asked."""
        placed, body = self.header_and_footer(width, height)
        captures, palette = self._captures, self.cell_theme.palette
        rows = [self._title(width)]
        chosen = self._chosen_index()
        below: list[Row] = []
        if captures is None:
            rows.append(Row(width).add(f"    reading {self._place} …", palette.dim))
        elif not captures:
            rows += capture_list.empty_list(self._place, width, self.cell_theme)
        else:
            assert chosen is not None
            self._columns = columns = capture_list.plan(width)
            below = self._question(width) or capture_list.details(captures[chosen], width, self.cell_theme)
            rows.append(capture_list.titles(columns, self.shown_order(), width, self.cell_theme))
            room = max(body.height - len(rows) - len(below) - 1, 1)
            self._top = max(min(self._top, chosen, len(captures) - room), chosen - room + 1, 0)
            self.page_lines, self._first_row = room, body.y + len(rows)
            shown = captures[self._top : self._top + room]
            rows += [
                capture_list.line(
                    one,
                    columns,
                    time.time(),
                    width,
                    self.cell_theme,
                    chosen=one is captures[chosen],
                    sign=self._sign(one),
                )
                for one in shown
            ]
        rows = rows[: max(body.height - len(below), 1)]
        rows += [Row(width).end(palette.text) for _ in range(body.height - len(rows) - len(below))]
        painted = [row.end(palette.text) for row in [*rows, *below]][: body.height]
        return [*placed, Placed(Rect(0, body.y, width, body.height), painted)]

    def _title(self, width: int) -> Row:
        palette, captures = self.cell_theme.palette, self._captures or []
        row = Row(width).add(" captures", palette.strong)
        signs = [("B baseline", self._baseline), ("1 compared with v", self._first)]
        shown = [text for text, path in signs if path is not None]
        total = fmt.size(sum(one.bytes for one in captures))
        said = f" {self.cell_theme.glyphs.dot} {len(captures)}, {total} in "
        # What the signs mean is read here alone; a long folder gives way to it.
        room = row.free_cells - len(said) - sum(len(text) + 3 for text in shown)
        if captures:
            row.add(said + fmt.shorten_middle(str(self._place), max(room, 8)), palette.dim)
        for text in shown:
            if len(text) + 3 <= row.free_cells:
                row.add(f" {self.cell_theme.glyphs.dot} ", palette.dim).add(text, palette.info)
        return row

    def _sign(self, capture: StoredCapture) -> str:
        return "1" if capture.path == self._first else "B" if capture.path == self._baseline else " "

    def _question(self, width: int) -> list[Row]:
        """Return the rows of the question before a deletion."""
        palette, capture = self.cell_theme.palette, self._capture()
        if not self._asks or capture is None:
            return []
        if self._asks == "delete":
            asked = f"Delete {fmt.printable(capture.name)}, {fmt.size(capture.bytes)}?"
            keys_now = "press enter to delete it, q to keep it"
        else:
            gone = self._beyond()
            asked = f"Keep the newest ‹ {self._keep} ›"
            much = f"{fmt.counted(len(gone), 'capture')}, {fmt.size(sum(one.bytes for one in gone))}"
            keys_now = f"left and right change the number; enter deletes {much}, q keeps all"
        return [
            Row(width).add(f"    {asked}", palette.warning),
            Row(width).add(f"    {keys_now}", palette.text),
        ]

    # --- choosing ---------------------------------------------------------------------------------------------

    def _chosen_index(self) -> int | None:
        """Return where the chosen capture stands; the newest where it is gone."""
        paths = [one.path for one in self._captures or []]
        if not paths:
            return None
        return paths.index(self._chosen) if self._chosen in paths else 0

    def _capture(self) -> StoredCapture | None:
        at = self._chosen_index()
        return None if at is None or self._captures is None else self._captures[at]

    def _beyond(self) -> list[StoredCapture]:
        return capture_store.removable_captures(self._newest_first, self._keep, self._baseline)

    def command(self) -> str:
        """Return the line that brings the chosen capture to another machine."""
        capture = self._capture()
        return "" if capture is None else capture.copy_command

    def move(self, step: int) -> None:
        """Choose the capture that is `step` lines further."""
        self.show_line((self._chosen_index() or 0) + step)

    def searchable(self) -> list[str]:
        """Return name, engine and verdict of each capture."""
        return [f"{one.name} {one.engine} {one.verdict or ''} {one.state}" for one in self._captures or []]

    def position(self) -> int:
        """Return the line of the chosen capture."""
        return self._chosen_index() or 0

    def show_line(self, place: int) -> None:
        """Choose the capture at this line, or at the end that is nearest to it."""
        if self._captures:
            self._asks = ""
            self._chosen = self._captures[min(max(place, 0), len(self._captures) - 1)].path

    def wheel(self, direction: int, y: int) -> None:
        """Choose the capture above or below."""
        self.action_move(direction)

    def click(self, x: int, y: int) -> None:
        """Choose the capture under the pointer, a second click opens it; on a title, sort by it."""
        if self._captures and y == self._first_row - 1:
            self.sort_by(capture_list.title_at(self._columns, x) or self.shown_order().name)
            return
        place = self._top + y - self._first_row
        if 0 <= y - self._first_row < self.page_lines and place < len(self._captures or []):
            if place == self._chosen_index() and not self._asks:
                self.action_go()
            self.show_line(place)
            self.redraw()

    def action_keep_more(self, step: int) -> None:
        """Keep more or fewer, where it is asked how many."""
        if self._asks == "keep":
            self._keep = min(max(self._keep + step, 0), max(len(self._captures or []), 0))
            self.redraw()

    # --- what keys do -----------------------------------------------------------------------------------------

    def action_go(self) -> None:
        """Open the chosen capture; where something is asked, do it."""
        capture = self._capture()
        if self._asks:
            self._delete([capture] if self._asks == "delete" and capture else self._beyond())
        elif capture is not None:
            self._open(capture)
        else:
            self.notify("The list has no capture to open.")

    def _open(self, capture: StoredCapture) -> None:
        if capture.state == "running":
            self.notify("This capture is still running; wait until it ends.")
        elif not capture.has_report:
            why = capture.info.error if capture.info and capture.info.error else "the capture has no report"
            self.notify(
                f"{capture.name}: {fmt.printable(why)}. To look at it: {capture.open_command}", markup=False
            )
        else:
            self.llmtop.open_screen(kind_named(capture.report_kind).screen, capture.path)

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: only captures with a verdict are compared."""
        capture = self._capture()
        if capture is None:
            return super().refused_actions() | _OF_ONE
        return super().refused_actions() | (frozenset() if capture.verdict else {"compare"})

    def action_kernels(self) -> None:
        """Open what ncu measured, where it lies beside the chosen capture."""
        capture = self._capture()
        if capture is None:
            self.notify("No capture is selected; select one to show its ncu report.")
        else:
            kernels.open_beside(self, capture.path)

    def action_baseline(self) -> None:
        """Mark the chosen capture as the baseline; at the second press, none."""
        capture = self._capture()
        if capture is None:
            self._tell_none()
            return
        try:
            report_picker.mark_path(self._place, None if capture.path == self._baseline else capture.path)
        except LlmtopError as error:
            self.notify(str(error), severity="warning", markup=False)
        self._baseline = capture_store.baseline(self._place)
        self.redraw()

    def action_mark_first(self) -> None:
        """Take the chosen capture as the one that another is compared with."""
        capture = self._capture()
        if capture is None:
            self._tell_none()
        self._first = None if capture is None or capture.path == self._first else capture.path
        self.redraw()

    def action_compare(self) -> None:
        """Compare the chosen capture with the one marked, else with the baseline."""
        capture, first = self._capture(), self._first or self._baseline
        if capture is None:
            self._tell_none()
            return
        if first is None:
            first = next(iter(self._older_captures(capture)), None)
        if first is None or first == capture.path:
            self.notify("First mark the other capture: m for this comparison, b as baseline; then press v here.")
            return
        for one in self._captures or []:
            if one.path in (first, capture.path) and not one.verdict:
                self.notify(
                    f"{one.name} ({one.engine}) has no steps: only reports with a verdict can be compared."
                )
                return
        self.in_background(partial(report_picker.read_both, first, capture.path), self._compare, "llmtop-compare")

    def _older_captures(self, capture: StoredCapture) -> list[Path]:
        """Return the captures of the same engine that are older than a capture, the newest first: without a
        marked baseline, it is compared with that one."""
        older = self._newest_first[self._newest_first.index(capture) + 1 :]
        return [one.path for one in older if one.verdict and one.engine == capture.engine]

    def _compare(self, found: tuple[Loaded, Loaded] | LlmtopError) -> None:
        from tui.screens.comparison import ComparisonScreen

        if isinstance(found, LlmtopError):
            self.notify(str(found), severity="warning", markup=False)
        else:
            self.app.push_screen(ComparisonScreen(*found))

    def action_delete(self) -> None:
        """Open the question before the deletion of the chosen capture."""
        capture = self._capture()
        if capture is not None and capture.state == "running":
            self.notify("This capture is still running; press x in its dialog to cancel it.")
        elif capture is not None:
            self._asks = "delete"
            self.redraw()
        else:
            self._tell_none()

    def action_keep(self) -> None:
        """Open the question for the number of newest captures to keep."""
        if self._captures:
            self._asks = "keep"
            self.redraw()
        else:
            self._tell_none()

    def _tell_none(self) -> None:
        self.notify("There are no captures yet; press c to take one.")

    def _delete(self, captures: list[StoredCapture]) -> None:
        self._asks = ""
        outcomes = [_remove_capture(capture.path) for capture in captures]
        freed = [outcome for outcome in outcomes if isinstance(outcome, int)]
        for outcome in outcomes:
            if isinstance(outcome, LlmtopError):
                self.notify(str(outcome), severity="warning", markup=False)
        if freed:
            self.notify(f"Deleted {fmt.counted(len(freed), 'capture')}, {fmt.size(sum(freed))}.")
        self._load_captures()
        self.redraw()

    async def action_back(self) -> None:
        """Leave what is asked; where nothing is, the screen."""
        if self._asks:
            self._asks = ""
            self.redraw()
        else:
            await self.llmtop.action_back()


def _remove_capture(path: Path) -> int | LlmtopError:
    """Return the bytes that are free now, or the sentence why the capture could not be deleted."""
    try:
        return folder.remove(path)
    except LlmtopError as error:
        return error


def _all(parent: Path) -> tuple[list[StoredCapture], Path | None]:
    return capture_store.list_captures(parent), capture_store.baseline(parent)
