"""What every screen of llmtop is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from llmtop.model.snapshot import Alert
from tui.core import keys
from tui.core.canvas import Board, Placed
from tui.core.context import ScreenContext
from tui.core.layout import Rect
from tui.paint import alert_style
from tui.paint.rows import CellTheme, Row
from tui.panes import header_footer
from tui.state import process_ref
from tui.state.process_ref import ProcessRef
from tui.state.view import View

NO_ALERT, NO_GPU = "No alert holds now.", "There is no GPU to show."

Result = TypeVar("Result")


class LlmtopScreen(Screen[None], inherit_bindings=False):
    """A screen that shows the app's view and is redrawn when it changes.

    A derived class sets `NAME` (which tui/core/keys.py uses) and either overrides `parts()`, and is then drawn on
    a board (`header_and_footer()` paints both), or overrides `compose()` and `redraw()` for widgets of its own.
    """

    NAME: ClassVar[str] = ""
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(name, f"app.press('{name}')", show=False)
        for name in dict.fromkeys(name for key in keys.KEYS for name in key.keys.split(","))
    ]

    @property
    def llmtop(self) -> ScreenContext:
        """The app that the screen is of, by its own type."""
        assert isinstance(self.app, ScreenContext)
        return self.app

    @property
    def view(self) -> View:
        """The newest snapshot, the history, and what the person chose."""
        return self.llmtop.view

    @property
    def cell_theme(self) -> CellTheme:
        """The colours and characters that things are drawn with now."""
        return self.llmtop.cell_theme

    def compose(self) -> ComposeResult:
        """Make the one board that covers the screen."""
        yield Board(self.redraw)

    def parts(self, width: int, height: int) -> list[Placed]:
        """Paint the screen for this size, header and footer included (`header_and_footer()` makes them)."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Show the view as it is now. Called for each snapshot, each change of choice, and each resize."""
        for board in self.query(Board):  # none yet, where the screen has only just been pushed
            if board.size:
                board.show(self.parts(*board.size), self.cell_theme)

    def on_screen_resume(self) -> None:
        """Catch up with what changed while another screen was on top."""
        self.redraw()

    def in_background(self, work: Callable[[], Result], done: Callable[[Result], None], name: str) -> None:
        """Do slow work in a thread and hand what it returned to `done`, in the app's thread.

        Nothing is handed over once the screen has been left.

        Args:
            name: of the thread.
        """
        app = self.app

        def finish(result: Result) -> None:
            if self.is_attached:
                done(result)

        def run() -> None:
            result = work()
            app.call_later(finish, result)

        threading.Thread(target=run, name=name, daemon=True).start()

    def alert(self) -> Alert | None:
        """The alert that keys act on here."""
        return None

    def target_process(self) -> ProcessRef:
        """The process that keys are about here: the alert's, else the one whose steps are shown."""
        alert, snapshot = self.alert(), self.view.snapshot
        if alert is None or snapshot is None:
            return process_ref.rank_process(self.view.rank())
        return process_ref.alert_process(alert, snapshot)

    def command(self) -> str:
        """The command or line that is shown here, for the key that copies it; empty where there is none."""
        alert, about = self.alert(), self.target_process()
        if about.pid is None:
            return "" if alert is None else alert.next
        return f"llmtop capture --pid {about.pid}"

    def picture(self) -> str:
        """What is drawn, as lines of text."""
        boards = self.query(Board)
        return "".join(
            f"{board.render_line(y).text.rstrip()}\n" for board in boards for y in range(board.size.height)
        )

    def action_mute(self) -> None:
        """Mute the alert for as long as it holds, or unmute it."""
        alert, snapshot = self.alert(), self.view.snapshot
        if alert is None or snapshot is None:
            self.notify("No alert is shown that could be muted.")
            return
        muted = self.view.alerts.mute(alert)
        about = f"{alert_style.alert_word(alert)} {alert_style.subject(alert, snapshot)}"
        self.notify(
            f"{about} is muted while it holds; a, z: hear it again" if muted else f"{about} is heard again"
        )
        self.redraw()

    def _choose_next(self, alerts: list[Alert]) -> None:
        """Choose the alert after the present one, of these; where there is none, say so."""
        if len(alerts) < 2:
            self.notify("There is no other alert." if alerts else NO_ALERT)
        self.view.alerts.advance(alerts)

    def select_gpu(self, number: str) -> bool:
        """Select the GPU that is shown under this number; where there is none, say which there are."""
        gpus = self.view.gpus()
        labels = [self.view.gpu_label(gpu) for gpu in gpus]
        if number in labels:
            self.view.selected = gpus[labels.index(number)].uuid
            return True
        self.notify(f"There is no GPU {number}: {', '.join(labels)}." if labels else NO_GPU)
        return False

    def header_and_footer(self, width: int, height: int) -> tuple[list[Placed], Rect]:
        """Paint header and footer.

        Returns:
            Both with their places, and the space between them.
        """
        top = 1 if height >= 5 else 0
        bottom = 1 if height >= 4 else 0
        placed = (
            [Placed(Rect(0, 0, width, 1), [header_footer.header(self.view, width, self.cell_theme)])]
            if top
            else []
        )
        if bottom:
            placed.append(Placed(Rect(0, height - 1, width, 1), [self.footer(width)]))
        return placed, Rect(0, top, width, height - top - bottom)

    def footer(self, width: int) -> Row:
        """Paint the line of keys that work here."""
        replaying, demo, labels, theme = self.llmtop.replaying, self.view.demo, self.labels(), self.cell_theme

        def paint() -> Row:
            here = keys.for_screen(self.NAME, replaying=replaying, demo=demo)
            return header_footer.footer([key for key in here if key.label], width, theme, labels)

        return self.view.kept.get("footer", (self.NAME, replaying, demo, width, theme, labels), paint)

    def labels(self) -> dict[str, str]:
        """Return replacements of the footer's labels: what a key does now, and to which process."""
        return {}
