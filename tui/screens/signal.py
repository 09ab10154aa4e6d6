"""Page that asks which signal to send to a process. Nothing is sent before enter on one of them."""

from __future__ import annotations

from llmtop import format as fmt
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Process
from tui.core import keys
from tui.paint.rows import Row, clip
from tui.screens.scrolling import ScrollingScreen
from tui.screens.send_signal import SIGNALS, send
from tui.state.process_ref import ProcessRef

_CHOICES = ("send nothing", *(f"{number.name:<8} {meaning}" for number, meaning in SIGNALS))


class SignalScreen(ScrollingScreen):
    """Signals that can be sent to a process; the list begins with "send nothing", which is selected."""

    NAME = keys.SIGNALS
    CSS_PATH = "report.tcss"

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._chosen = 0
        self._first = 0
        """Line of the first choice."""

    def target_process(self) -> ProcessRef:
        """Return the process that a signal would be sent to."""
        return ProcessRef(self._process.pid, f"pid {self._process.pid}", by_alert=True)

    def lines(self, width: int) -> list[Row]:
        """Return which process, then what can be sent."""
        palette, process = self.cell_theme.palette, self._process
        user = f" of {fmt.printable(process.user)}" if process.user else ""
        rows = [Row(width).add(f" Send a signal to process {process.pid}{user}", palette.strong)]
        rows.append(Row(width).add(clip(f"   {fmt.printable(process.command or '')}", width), palette.text))
        rows.append(Row(width))
        self._first = len(rows)
        for place, text in enumerate(_CHOICES):
            style = palette.cursor if place == self._chosen else palette.text
            sign = self.cell_theme.glyphs.selected if place == self._chosen else " "
            rows.append(Row(width).add(f" {sign} {text}".ljust(width), style))
        return rows

    def keep_in_sight(self, room: int, count: int) -> None:
        """Scroll to the selected line."""
        place = self._first + self._chosen
        self.top = max(min(self.top, place), place + 1 - room)

    def move(self, step: int) -> None:
        """Select the line that is `step` lines further."""
        self.found_line = None
        self._chosen = min(max(self._chosen + step, 0), len(_CHOICES) - 1)

    def scroll_lines(self, step: int) -> None:
        """Select a line: the list is shorter than most pages."""
        self.move(step)

    def show_line(self, place: int) -> None:
        """Select the line that was found."""
        super().show_line(place)
        self._chosen = min(max(place - self._first, 0), len(_CHOICES) - 1)

    def position(self) -> int:
        """Return the line of the present match, else the selected one."""
        return self._first + self._chosen if self.found_line is None else self.found_line

    def click_line(self, place: int) -> None:
        """Select the line under the pointer; a click sends nothing."""
        if 0 <= place - self._first < len(_CHOICES):
            self.move(place - self._first - self._chosen)
            self.redraw()

    async def action_go(self) -> None:
        """Send the selected signal, go back, and report there what happened."""
        said, is_refused = f"Nothing was sent to process {self._process.pid}.", False
        if self._chosen:
            number = SIGNALS[self._chosen - 1][0]
            try:
                send(self._process, number)
                said = f"{number.name} sent to process {self._process.pid}."
            except LlmtopError as error:
                said, is_refused = str(error), True
        await self.llmtop.action_back()
        self.app.notify(said, severity="warning" if is_refused else "information", markup=False)
