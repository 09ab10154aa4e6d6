"""The capture screen: a dialog filled with the best choice, the stages of the capture, and its result."""

from __future__ import annotations

from functools import partial
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

_last: dict[str, Plan] = {}
"""The plan of the capture before, for the key that repeats it."""


class CaptureScreen(ScrollingScreen):
    """The form of a capture, then its stages, then what came of it."""

    NAME = keys.CAPTURE
    CSS_PATH = "capture.tcss"

    def __init__(self, about: ProcessRef | None = None) -> None:
        """Ask what to capture, or show the capture that runs.

        Args:
            about: the process to propose; None: the one whose steps are shown.
        """
        super().__init__()
        self._about = about
        self._form: Form | None = None
        self._looking = False
        self._asks = False
        self._cursor: int | None = None
        """The line that is being chosen."""

    @property
    def _capturing(self) -> Capturing:
        app = self.llmtop  # asked for here: the thread of a capture knows of no active app
        return session.capture_of(app, lambda: app.view.snapshot, app.prepared)

    def on_mount(self) -> None:
        """Show the running capture, or search for processes to capture."""
        self._capturing.watching = self._changed
        if not self._capturing.busy:
            self._ask()

    def on_unmount(self) -> None:
        """Leave the capture to itself: it goes on without its dialog."""
        self._capturing.watching = None

    def _ask(self) -> None:
        """Fill the form; asking every process and tool is done in a thread."""
        self._asks, self._looking, self.top = True, True, 0
        prepared, snapshot = self.llmtop.prepared, self.view.snapshot
        if prepared is None:
            self.in_background(capturable_processes, self._fill, "llmtop-prospects")
        else:
            self.in_background(partial(_prepared, prepared, snapshot), self._fill_prepared, "llmtop-prospects")

    def _fill_prepared(self, found: PreparedForm | LlmtopError) -> None:
        self._looking = False
        if isinstance(found, LlmtopError):
            self.notify(str(found), severity="warning", markup=False)
            self._form = Form(())
        else:
            self._form = found
        self.redraw()

    def _fill(self, found: tuple[CapturableProcess, ...]) -> None:
        self._looking = False
        about = self._about or process_ref.rank_process(self.view.rank())
        self._form = Form(found, pid=about.pid, alone=about.by_alert)
        self.redraw()

    def command(self) -> str:
        """The line that brings the capture that was taken to another machine."""
        taken = self._capturing.result
        return super().command() if taken is None else taken.copy_command

    def _changed(self) -> None:
        self.redraw()

    def keep_in_sight(self, room: int, count: int) -> None:
        """Scroll so that the line that is being chosen can be seen."""
        if self._cursor is not None:
            seen = room - 1 if count > room else room  # the last line may say how much more there is
            self.top = max(min(self.top, self._cursor), self._cursor - seen + 1)

    def lines(self, width: int) -> list[Row]:
        """The form, the stages, or the result."""
        theme, now = self.cell_theme, self._capturing
        self._cursor = None
        if now.busy:
            return capture.progress_rows(now, width, theme)
        if not self._asks and now.state != "idle":
            return capture.outcome(now, width, theme)
        title = Row(width).add(" Capture", theme.palette.strong).end(theme.palette.text)
        if self._form is None or self._looking:
            text = "   looking which processes can be captured, and how"
            return [title, Row(width), Row(width).add(text, theme.palette.dim)]
        rows, cursor = capture.form(self._form, width, theme)
        self._cursor = cursor + 2
        return [title, Row(width), *rows]

    def action_field(self, step: int) -> None:
        """Another line of the form; another part of the report."""
        if self._asking:
            assert self._form is not None
            self._form.move(step)
            self._tell_fixed()
        else:
            self.top += step
        self.redraw()

    def action_change(self, step: int) -> None:
        """Go to another value of the chosen line."""
        if self._asking:
            assert self._form is not None
            self._form.change(step)
            self.redraw()

    def _tell_fixed(self) -> None:
        """Say why there is no other line to go to."""
        if self._form is not None and self._form.fixed:
            self.notify(self._form.fixed)

    @property
    def _asking(self) -> bool:
        return self._asks and self._form is not None and not self._looking and not self._capturing.busy

    def action_go(self) -> None:
        """Start the capture of the form; after a capture, show the form again."""
        if self._capturing.busy:
            return
        if not self._asks:
            self._ask()
            self.redraw()
            return
        plan = self._form.plan() if self._asking and self._form else None
        if plan is not None and self._form is not None:
            self._begin(plan, self._form)

    def _begin(self, plan: Plan, form: Form) -> None:
        _last["plan"] = plan
        self._asks, self.top = False, 0
        self._capturing.begin(plan, form.condition)
        self.redraw()

    async def action_cancel(self) -> None:
        """Call the capture off; where there is none, go back."""
        if self._capturing.busy:
            self._capturing.cancel()
        else:
            await self.llmtop.action_back()


def _prepared(prepared: PreparedCaptures, snapshot: Snapshot | None) -> PreparedForm | LlmtopError:
    """The demo's form, or the sentence why there is none."""
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
        self._capturing.watching = self._changed
        if (
            plan is None
            or self.llmtop.prepared is not None
            or not all(procfs.is_alive(target.pid) for target in plan.targets)
        ):
            self._ask()  # a training that was started anew is another process
        elif not self._capturing.busy:
            self._capturing.begin(plan)
