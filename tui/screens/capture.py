"""The capture screen: a dialog filled with the best choice, the stages of the capture, and its result."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from llmtop.capture.base.job import Plan
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import Snapshot
from llmtop.system import procfs
from tui.capture import session
from tui.capture.form import CapturableProcess, Form, capturable_processes
from tui.capture.session import Capturing
from tui.core import keys
from tui.paint.rows import Row
from tui.panes import capture
from tui.screens.scrolling import ScrollingScreen
from tui.state import process_ref
from tui.state.process_ref import ProcessRef

if TYPE_CHECKING:
    from llmtop.capture.prepared import PreparedCaptures
    from tui.capture.prepared_form import PreparedForm

FOLLOW_SECONDS = 0.5
"""Interval at which the open dialog compares the trainings on the screen with those it lists."""
REFILL_SECONDS = 5.0
"""Processes that are not attached are on no screen: they are asked for at this interval."""

_last: dict[str, Plan] = {}
"""The plan of the capture before, for the key that repeats it."""


class CaptureScreen(ScrollingScreen):
    """The form of a capture, then its stages, then what came of it."""

    NAME = keys.CAPTURE
    CSS_PATH = "capture.tcss"

    def __init__(self, about: ProcessRef | None = None) -> None:
        """Show the form for a capture, or the running capture.

        Args:
            about: the process to propose; None: the one whose steps are shown.
        """
        super().__init__()
        self._about = about
        self._form: Form | None = None
        self._looking = False
        self._refilling = False
        """True if the processes are being asked again behind the form."""
        self._asks = False
        self._cursor: int | None = None
        """The line that is being chosen."""
        self._places: dict[int, int] = {}
        """Field of each line of the form."""
        self._trainings: tuple[int, ...] = ()
        """pids of the trainings that were attached when the form was filled."""
        self._filled_at = 0.0

    @property
    def _capturing(self) -> Capturing:
        app = self.llmtop  # asked for here: the thread of a capture knows of no active app
        return session.capture_of(app, lambda: app.view.snapshot, app.prepared)

    def on_mount(self) -> None:
        """Show the running capture, or search for processes to capture."""
        self._capturing.watching = self._on_change
        self.set_interval(FOLLOW_SECONDS, self._follow_trainings)
        if not self._capturing.busy:
            self._ask()

    def on_unmount(self) -> None:
        """Leave the capture to itself: it goes on without its dialog."""
        self._capturing.watching = None

    def _attached_pids(self) -> tuple[int, ...]:
        """pids of the trainings on the screen."""
        return tuple(sorted(rank.pid for rank in self.view.ranks() if rank.state != "gone"))

    def _follow_trainings(self) -> None:
        """Update the form when trainings have come or gone, and now and then for processes that are not
        attached."""
        if not self._asking or self.llmtop.prepared is not None or self._refilling:
            return
        if self._attached_pids() != self._trainings or monotonic() - self._filled_at > REFILL_SECONDS:
            self._refilling, self._trainings = True, self._attached_pids()
            self.in_background(capturable_processes, self._refill, "llmtop-targets")

    def _refill(self, found: tuple[CapturableProcess, ...]) -> None:
        self._refilling, self._filled_at = False, monotonic()
        if not self._asking or self._form is None:
            return
        before = {one.target.pid for one in self._form.known}
        gone = before - {one.target.pid for one in found}
        chosen = gone & {one.target.pid for one in self._form.group}
        if self._form.known != found:
            self._form = self._form.updated(found)
        if chosen:
            named = ", ".join(f"pid {pid}" for pid in sorted(chosen))
            self.notify(f"The chosen training has ended, choose another one: {named}.", severity="warning")
        self.redraw()

    def _ask(self) -> None:
        """Fill the form; asking every process and tool is done in a thread."""
        self._asks, self._looking, self.top, self.found_line = True, True, 0, None
        self._trainings = self._attached_pids()
        prepared, snapshot = self.llmtop.prepared, self.view.snapshot
        if prepared is None:
            self.in_background(capturable_processes, self._fill, "llmtop-targets")
        else:
            self.in_background(partial(_prepared_form, prepared, snapshot), self._fill_prepared, "llmtop-targets")

    def _fill_prepared(self, found: PreparedForm | LlmtopError) -> None:
        self._looking = False
        if isinstance(found, LlmtopError):
            self.notify(str(found), severity="warning", markup=False)
            self._form = Form(())
        else:
            self._form = found
        self.redraw()

    def _fill(self, found: tuple[CapturableProcess, ...]) -> None:
        self._looking, self._filled_at = False, monotonic()
        about = self._about or process_ref.rank_process(self.view.rank())
        self._form = Form(found, pid=about.pid, alone=about.by_alert)
        self.redraw()

    def command(self) -> str:
        """Return the line that brings the capture that was taken to another machine."""
        taken = self._capturing.result
        return super().command() if taken is None else taken.copy_command

    def _on_change(self) -> None:
        self.redraw()

    def keep_in_sight(self, room: int, count: int) -> None:
        """Scroll so that the line that is being chosen can be seen."""
        if self._cursor is not None:
            seen = room - 1 if count > room else room  # the last line may say how much more there is
            self.top = max(min(self.top, self._cursor), self._cursor - seen + 1)

    def lines(self, width: int) -> list[Row]:
        """Return the form, the stages, or the result."""
        theme, now = self.cell_theme, self._capturing
        self._cursor, self._places = None, {}
        if now.busy:
            return capture.progress_rows(now, width, theme)
        if not self._asks and now.state != "idle":
            return capture.outcome(now, width, theme)
        title = Row(width).add(" Capture", theme.palette.strong).end(theme.palette.text)
        if self._form is None or self._looking:
            text = "   checking which processes can be captured"
            return [title, Row(width), Row(width).add(text, theme.palette.dim)]
        rows, places = capture.form(self._form, width, theme)
        self._places = {row + 2: place for row, place in places.items()}
        at = min(self._form.at, len(self._form.fields()) - 1)
        self._cursor = next((row for row, place in self._places.items() if place == at), None)
        return [title, Row(width), *rows]

    def move(self, step: int) -> None:
        """Move to another line of the form; scroll the result."""
        if self._asking:
            assert self._form is not None
            self.found_line = None
            self._form.move(step)
            self._tell_fixed()
        else:
            self.scroll_lines(step)

    def action_page(self, share: float) -> None:
        """Scroll the result by pages; the form has few lines, so its first or its last one."""
        if self._asking:
            self.action_edge(1 if share > 0 else -1)
        else:
            super().action_page(share)

    def action_edge(self, direction: int) -> None:
        """Move to the first (-1) or the last (1) line."""
        if self._asking and self._form is not None:
            self.action_move(direction * len(self._form.fields()))
        else:
            super().action_edge(direction)

    def wheel(self, direction: int, y: int) -> None:
        """Move through the lines of the form; scroll the result."""
        if self._asking:
            self.action_move(direction)
        else:
            super().wheel(direction, y)

    def click_line(self, place: int) -> None:
        """Choose the line of the form under the pointer; a second click takes its next value."""
        field = self._places.get(place)
        if self._form is None or not self._asking or field is None:
            return
        if self._form.at == field:
            self.action_change(1)
        self._form.at = field
        self.redraw()

    def action_whole(self) -> None:
        """Show or hide the engines that are unavailable, with their reasons."""
        if not self._asking or self._form is None:
            self.notify("Only the capture dialog lists the engines: press enter to show it again.")
        elif not self._form.unavailable():
            self.notify("The dialog already lists all unavailable engines.")
        else:
            self._form.unfolded = not self._form.unfolded
            self.redraw()

    def action_again(self) -> None:
        """Show the dialog again after a capture."""
        if self._capturing.busy:
            self.notify("A capture is already running: wait until it ends, or press x to cancel it.")
        elif self._asks:
            self.notify("The capture dialog is already open: press enter to start the capture.")
        else:
            self._ask()
            self.redraw()

    def action_change(self, step: int) -> None:
        """Select another value of the chosen line."""
        if self._asking:
            assert self._form is not None
            self._form.change(step)
            self.redraw()
        else:
            self.notify("There is no value to change here: press enter to show the capture dialog again.")

    def _tell_fixed(self) -> None:
        """Show why there is no other line to go to."""
        if self._form is not None and self._form.fixed:
            self.notify(self._form.fixed)

    @property
    def _asking(self) -> bool:
        return self._asks and self._form is not None and not self._looking and not self._capturing.busy

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: what the dialog, a running capture or its result has no use for."""
        refused = set[str]() if self._asking else {"change", "whole"}
        if self._asking and self._form is not None and self._form.plan() is None:
            refused.add("go")
        if self._capturing.busy:
            refused.add("go")
        else:
            refused.add("cancel")
        return super().refused_actions() | refused

    def action_go(self) -> None:
        """Start the capture of the form; after a capture, show the form again."""
        if self._capturing.busy or self._looking:
            self.notify(
                "A capture is already running: wait until it ends, or press x to cancel it."
                if self._capturing.busy
                else "Still asking."
            )
            return
        if not self._asks:
            self._ask()
            self.redraw()
            return
        plan = self._form.plan() if self._asking and self._form else None
        if plan is not None and self._form is not None:
            self._begin(plan, self._form)
        else:
            self.notify("No training can be captured yet; start one with llmtop run -- COMMAND.")

    def _begin(self, plan: Plan, form: Form) -> None:
        _last["plan"] = plan
        self._asks, self.top, self.found_line = False, 0, None
        self._capturing.begin(plan, form.condition)
        self.redraw()

    async def action_cancel(self) -> None:
        """Cancel the capture; where there is none, go back."""
        if self._capturing.busy:
            self._capturing.cancel()
        else:
            await self.llmtop.action_back()


def _prepared_form(prepared: PreparedCaptures, snapshot: Snapshot | None) -> PreparedForm | LlmtopError:
    """Return the demo's form, or the sentence why there is none."""
    from tui.capture.prepared_form import prepared_form

    try:
        return prepared_form(prepared, snapshot)
    except LlmtopError as error:
        return error


class RepeatScreen(CaptureScreen):
    """A capture without the dialog: repeats the last one at once, or asks where that is not possible."""

    def on_mount(self) -> None:
        """Begin the last capture again; ask what to capture where there was none, or its process has ended."""
        plan = _last.get("plan")
        self._capturing.watching = self._on_change
        self.set_interval(FOLLOW_SECONDS, self._follow_trainings)
        if (
            plan is None
            or self.llmtop.prepared is not None
            or not all(procfs.is_alive(target.pid) for target in plan.targets)
        ):
            self._ask()  # a training that was started anew is another process
        elif not self._capturing.busy:
            self._capturing.begin(plan)
