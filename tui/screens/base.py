"""Base class of all screens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from llmtop.model.snapshot import Alert
from tui.core import footer as footer_row
from tui.core import keys
from tui.core.board_screen import BoardScreen
from tui.core.canvas import Placed
from tui.core.context import ScreenContext
from tui.core.footer import Footer
from tui.core.keys import Key
from tui.core.layout import Rect
from tui.paint import alert_style
from tui.paint.rows import Row
from tui.panes import header_footer
from tui.state import process_ref
from tui.state.process_ref import ProcessRef
from tui.state.view import View

NO_ALERT, NO_GPU = "There is no active alert.", "This machine has no GPU to show."

Result = TypeVar("Result")


class LlmtopScreen(BoardScreen):
    """A screen that shows the app's view and is redrawn when it changes.

    A derived class sets `NAME` (which tui/core/keys.py uses) and overrides `parts()`; `header_and_footer()` paints
    both.
    """

    @cached_property  # a frame asks 30 times, and Textual looks the app up each time
    def llmtop(self) -> ScreenContext:
        """The app that the screen is of, by its own type."""
        assert isinstance(self.app, ScreenContext)
        return self.app

    @property
    def view(self) -> View:
        """The newest snapshot, the history, and what the person chose."""
        return self.llmtop.view

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
        """Return the alert that keys act on here."""
        return None

    def target_process(self) -> ProcessRef:
        """Return the process that keys are about here: the alert's, else the one whose steps are shown."""
        alert, snapshot = self.alert(), self.view.snapshot
        if alert is None or snapshot is None:
            return process_ref.rank_process(self.view.rank())
        return process_ref.alert_process(alert, snapshot)

    def command(self) -> str:
        """Return the command or line that is shown here, for the key that copies it; empty where there is none."""
        alert, about = self.alert(), self.target_process()
        if about.pid is None:
            return "" if alert is None else alert.next
        return f"llmtop capture --pid {about.pid}"

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: without a command there is nothing to copy."""
        return super().refused_actions() | (frozenset() if self.command() else {"copy"})

    def action_mute(self) -> None:
        """Mute the alert for as long as it holds, or unmute it."""
        alert, snapshot = self.alert(), self.view.snapshot
        if alert is None or snapshot is None:
            self.notify("There is no active alert that could be muted.")
            return
        muted = self.view.alerts.mute(alert)
        about = f"{alert_style.alert_word(alert)} {alert_style.subject(alert, snapshot)}"
        self.notify(
            f"{about} is muted while the alert holds; press a, then z, to unmute it"
            if muted
            else f"{about} is unmuted"
        )
        self.redraw()

    def _choose_next(self, alerts: list[Alert]) -> None:
        """Choose the alert after the present one, of these; where there is none, say so."""
        if len(alerts) < 2:
            self.notify("This is the only alert." if alerts else NO_ALERT)
        self.view.alerts.advance(alerts)

    def select_gpu(self, number: str) -> bool:
        """Select the GPU that is shown under this number; where there is none, say which there are."""
        gpus = self.view.gpus()
        labels = [self.view.gpu_label(gpu) for gpu in gpus]
        if number in labels:
            self.view.selected = gpus[labels.index(number)].uuid
            return True
        self.notify(f"There is no GPU {number}. GPUs on the screen: {', '.join(labels)}." if labels else NO_GPU)
        return False

    def header_and_footer(self, width: int, height: int) -> tuple[list[Placed], Rect]:
        """Paint header and footer.

        Returns:
            Both with their places, and the space between them.
        """
        top = 1 if height >= 5 else 0
        bottom = 1 if height >= 4 else 0
        placed = [Placed(Rect(0, 0, width, 1), [self.header(width)])] if top else []
        if bottom:
            placed.append(Placed(Rect(0, height - 1, width, 1), [self.paint_footer(width)]))
        return placed, Rect(0, top, width, height - top - bottom)

    def header(self, width: int) -> Row:
        """Paint the first line."""
        return header_footer.header(self.view, width, self.cell_theme)

    def paint_footer(self, width: int) -> Row:
        """See `BoardScreen.paint_footer`; painted anew only where something differs."""
        replaying, demo, labels, theme = self.llmtop.replaying, self.view.demo, self.labels(), self.cell_theme
        gpus = self.has_gpus()

        def paint() -> Footer:
            here = keys.for_screen(self.NAME, replaying=replaying, demo=demo)
            shown = [key for key in here if key.label and self.is_key_shown(key)]
            return footer_row.footer(shown, width, theme, labels, self.PINNED)

        made_of = (self.NAME, replaying, demo, gpus, width, theme, labels, self.refused_actions())
        self.footer_now = self.view.kept.get("footer", made_of, paint)
        return self.footer_now.row

    def is_key_shown(self, key: Key) -> bool:
        """Return False for keys that need a GPU on a machine without one, and for those that would refuse."""
        return super().is_key_shown(key) and (not key.gpu or self.has_gpus())

    def has_gpus(self) -> bool:
        """Return True if there is a GPU, or one may be hidden by what the person chose."""
        snapshot = self.view.snapshot
        return snapshot is None or bool(snapshot.gpus) or self.view.selection != "all"

    def labels(self) -> dict[str, str]:
        """Return replacements of the footer's labels: what a key does now, and to which process."""
        return {}
