"""The app: takes snapshots from a feed, keeps the view, and pushes screens."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from rich.cells import cached_cell_len
from textual.app import SystemCommand
from textual.screen import Screen

from collectors.base.source import Feed, GpuChoice, ReplayControls
from llmtop.errors import EXIT_DONE, LlmtopError
from llmtop.format import printable
from llmtop.model.alerts import NewAlertFilter
from llmtop.model.snapshot import Alert, Snapshot
from tui.core import keys
from tui.core.context import ScreenContext
from tui.core.picture import save_picture
from tui.core.theme_memory import ThemeMemory
from tui.paint import alert_style
from tui.paint.glyphs import to_ascii
from tui.paint.palette import THEMES
from tui.panes import time_line
from tui.screens.base import NO_GPU, LlmtopScreen
from tui.screens.main import MainScreen
from tui.screens.registry import screen_class
from tui.state.earlier_view import EarlierView
from tui.state.history import SPANS, without_new_steps
from tui.state.past_loader import PastLoader
from tui.state.process_ref import ProcessRef
from tui.state.view import View
from tui.terminal import textual_private
from tui.terminal.session import has_shell, title

if TYPE_CHECKING:
    from collectors.past import SnapshotHistory
    from collectors.replay import SnapshotReader
    from collectors.runs.past import OpenedRun
    from llmtop.capture.prepared import PreparedCaptures
    from tui.state.past_rows import PastRows

INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between snapshots that the keys go through."""
MAX_PENDING = 600
"""Snapshots kept for a screen that does not get to them (a terminal that has stopped reading); older ones go."""
STALE_SECONDS, STALE_TIMES = 4.0, 3.0
"""Time without a snapshot, and multiple of the interval; beyond both the screen is not live."""
_BEHIND_SECONDS = 0.25
_PAST_SECONDS = 0.3
LATEST_START_SECONDS = 2.0
"""Time after which the feed starts even if the first frame has not been drawn."""
NO_OLDER_SAMPLE = "No older sample is kept, and no attached training has a run file of an earlier time."
_WIDTHS_KEPT = 1024
"""Texts of which rich remembers the width: what is drawn anew every second is many times fewer."""


class LlmtopApp(ScreenContext):
    """The monitor. Its return value is the exit code."""

    TITLE = "llmtop"
    ENABLE_COMMAND_PALETTE = True

    _wanted: float | None = None
    """Unix time to show once the files of runs are read that reach back to it."""

    def __init__(
        self,
        feed: Feed,
        *,
        ascii: bool = False,
        theme: str | None = None,
        memory: ThemeMemory | None = None,
        prepared: PreparedCaptures | None = None,
        run: OpenedRun | None = None,
        recording: Callable[[], SnapshotReader] | None = None,
    ) -> None:
        """Prepare; `run()` starts the feed; `tui.show.show` does it with the terminal guarded.

        Args:
            feed: where snapshots come from; the app starts and closes it.
            ascii: draw with ASCII characters only.
            theme: a theme's name; those of llmtop also without "llmtop-".
            memory: the theme that was chosen last, which holds where no other is given; None: none is remembered.
            prepared: captures to open in place of taking some: the demo's.
            run: what the feed plays, where it is a run: its charts begin with the whole past.
            recording: opens what the feed plays once more, where it is a recording: charts have what lies before a
                jump.

        Raises:
            UnusableInput: there is no such theme.
        """
        super().__init__(ascii=ascii, theme=theme, memory=memory)
        self._feed = feed
        self._replays = isinstance(feed, ReplayControls)  # a protocol: to ask that takes 0.1 ms
        self._lock = threading.Lock()
        self._pending: deque[Snapshot | list[Snapshot]] = deque(maxlen=MAX_PENDING)
        self._has_posted = False
        self._loop_context: Context | None = None
        """Variables that Textual sets for what runs in the app's loop."""
        self._past: SnapshotHistory | None = None
        self._newest: Snapshot | None = None
        self._last_snapshot_at = time.monotonic()
        self._silence: asyncio.TimerHandle | None = None
        self._waiting = self._begun = False
        self._ringing: NewAlertFilter | None = None
        self.prepared = prepared
        self._loader = PastLoader(
            lambda past: self.call_later(self._take_past, past),
            lambda rows: self.call_later(self._take_samples, rows),
        )
        self._earlier = EarlierView(lambda at, found: self.call_later(self._show_earlier, at, found))
        self._run_begin: float | None = None
        """Unix time since when files of runs are known that began before a live screen."""
        self._recording, self._run = recording, run
        self._loads_run = self._draws_past = self._has_shown_end = False
        self.view = View(interval=feed.interval, demo=prepared is not None)
        if isinstance(feed, GpuChoice):
            self.view.selection = feed.selection
        if run is not None:
            self.view.history.begin_with(run.begin, run.until)
            self.view.history.span = None
        # Round which the key for GPUs goes: what was asked for at the start, all, those in use by trainings.
        self._selections = [*dict.fromkeys((self.view.selection, "all", "attached"))]

    # --- life -------------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        """Return the main screen, the lowest of the stack."""
        return MainScreen()

    def on_mount(self) -> None:
        """Start the feed once the first frame is drawn."""
        self._loop_context = copy_context()
        self.follow_theme()
        if isinstance(self._feed, ReplayControls):
            self._feed.on_jump(self._on_jump)
            self._feed.on_end(self._on_end)
        # Not before the first frame is out: the live feed imports its sources when it starts. And by a timer, in
        # case that frame never comes to an end on a machine under load.
        self.call_after_refresh(self._begin)
        self.set_timer(LATEST_START_SECONDS, self._begin)

    def _begin(self) -> None:
        """Start the feed, once."""
        if not self._begun:
            self._begun = True
            gc.enable()  # `show_feed` disabled it up to the first frame
            self._feed.start(self._receive)

    def on_unmount(self) -> None:
        """Stop the feed: nothing is shown any more."""
        self._feed.close()
        if self._silence is not None:
            self._silence.cancel()
        if self._past is not None:
            self._past.close()

    # --- snapshots --------------------------------------------------------------------------------------------

    @property
    def replaying(self) -> bool:
        """Return True if the feed plays a recording."""
        return self._replays

    @property
    def is_demo(self) -> bool:
        """See `TerminalApp.is_demo`."""
        return self.view.demo

    def _receive(self, snapshot: Snapshot) -> None:
        """Store and queue the snapshot, and wake the app's loop unless it is about to take one; runs in the feed's
        thread."""
        if not self.replaying:
            if self._past is None:
                from collectors.past import SnapshotHistory  # after the first frame

                self._past = SnapshotHistory()
            self._past.write(snapshot)
        self._queue(snapshot)

    def _on_end(self) -> None:
        self.call_later(self.redraw)

    def _on_jump(self, before: list[Snapshot]) -> None:
        self._queue(before)

    def _queue(self, item: Snapshot | list[Snapshot]) -> None:
        with self._lock:
            self._pending.append(item)
            posted, self._has_posted = self._has_posted, True
        if posted:
            return
        # Past Textual's queue of messages, where each costs 0.2 ms with cold caches.
        loop = textual_private.event_loop(self)
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._take_or_fail, context=self._loop_context)
                return
        except RuntimeError:  # it is closed
            pass
        with self._lock:
            self._has_posted = False  # the loop was not running: the next snapshot wakes it again

    def _take_or_fail(self) -> None:
        if not self.is_running:
            return
        try:
            self.take_arrived()
        except Exception as error:  # noqa: BLE001  the loop would only log it
            self.end_for(error)

    def take_arrived(self) -> None:
        """Take in everything that waits, then draw once."""
        with self._lock:
            waiting = list(self._pending)
            self._pending.clear()
            self._has_posted = False
        self._mark_live()
        history, newest = self.view.history, None
        for item in waiting:
            if not isinstance(item, Snapshot):
                history.join(item)
                self.view.alerts.replace(item)
                if self._recording is not None and item:
                    self._loader.read_recording(self._recording, item[0].time)
                continue
            at = history.add(item)
            self.view.alerts.take(item)
            newest = item
            if self.replaying:
                history.instant = at
        if newest is None:
            return
        newest = self._newest = without_new_steps(newest)
        if self._run is not None and not self._loads_run:
            self._begin_loading(self._run)
        if not self.replaying and newest.ranks:
            self._loader.ask(newest, self.view.alerts.since or newest.time)
        self._call_attention(newest)
        if self.replaying or history.instant is None:
            self.view.snapshot = newest
            self.redraw()

    def _begin_loading(self, run: OpenedRun) -> None:
        """Load the past of the run that is played, once the first screen is there."""
        from collectors.base.malloc import reduce_cycle_collections

        self._loads_run = True
        reduce_cycle_collections()  # with many ranks a scan takes 0.1 s, in which no key is answered
        self._loader.start(run.read)

    def _take_past(self, past: PastRows) -> None:
        """Show what a run has kept of the time before."""
        if not self.replaying:
            self._run_begin = min(past.begin, self._run_begin or past.begin)
        self._take_samples(past)
        if self._wanted is not None and self._run_begin is not None:
            at, self._wanted = self._wanted, None
            self._show(at)

    def _take_samples(self, past: PastRows) -> None:
        """Show a piece of the past; drawn once for many pieces."""
        self.view.history.take_past(past)
        self.view.alerts.add_past([(one.as_alert(), one.until) for one in past.alerts if one.until is not None])
        if not self._draws_past:
            self._draws_past = True
            self.set_timer(_PAST_SECONDS, self._draw_past)

    def _draw_past(self) -> None:
        self._draws_past = False
        self.redraw()

    def _mark_live(self) -> None:
        """The screen is live until nothing has come for a while."""
        self._last_snapshot_at, self.view.silent_seconds = time.monotonic(), None
        if self._silence is not None:
            self._silence.cancel()
        loop = textual_private.event_loop(self)
        if not self.replaying and loop is not None:
            patience = max(STALE_SECONDS, STALE_TIMES * self.view.interval)
            self._silence = loop.call_later(patience, self._mark_stale)

    def _mark_stale(self) -> None:
        """Show that the screen is not live, and since when."""
        loop = textual_private.event_loop(self)
        if loop is None or not self.is_running:
            return
        self._silence = loop.call_later(1.0, self._mark_stale)
        self.view.silent_seconds = time.monotonic() - self._last_snapshot_at
        if self.view.snapshot is not None and self.view.history.instant is None:
            self.redraw()

    def redraw(self) -> None:
        """Redraw the screen on top from the view; later, if the terminal is busy with earlier frames."""
        if self.terminal_is_behind():
            if not self._waiting:
                self._waiting = True
                self.set_timer(_BEHIND_SECONDS, self._draw_late)
            return
        self._describe_replay()
        if self.view.demo:
            self._tell_end()  # which puts another screen on top
        if cached_cell_len.cache_info().currsize > _WIDTHS_KEPT:
            cached_cell_len.cache_clear()  # it keeps every row of every chart that was ever drawn
        screen = self.screen_stack[-1] if self.screen_stack else None  # none while the app starts or ends
        if isinstance(screen, LlmtopScreen):
            screen.redraw()

    def _draw_late(self) -> None:
        self._waiting = False
        self.redraw()

    def _describe_replay(self) -> None:
        feed = self._feed
        if self._replays and isinstance(feed, ReplayControls):
            self.view.paused, self.view.ended = feed.paused, feed.ended
            end = " end" if feed.ended else ""
            self.view.replay = f"{feed.speed:g}× {_clock(feed.position)} of {_clock(feed.length)}{end}"

    def _tell_end(self) -> None:
        """Show the next actions at the demo's end; once, and not over another screen."""
        if not self.view.ended:
            self._has_shown_end = False
        elif not self._has_shown_end and isinstance(self.screen, MainScreen):
            self._has_shown_end = True
            self.open_screen("DemoEndScreen")

    def _call_attention(self, snapshot: Snapshot) -> None:
        """Ring once for each new alert and name the worst in the title: tmux shows both in other windows."""
        loud = [alert for alert in self.view.alerts.unmuted(snapshot) if alert_style.alert_rank(alert) > 0]
        first = self._ringing is None
        ringing = self._ringing or NewAlertFilter()
        before, new = ringing.up, ringing.select_new(loud)
        self._ringing = ringing
        if not first and not new and len(before) == len(ringing.up):
            return
        driver = textual_private.driver_of(self)
        if driver is not None and not self.is_headless:
            driver.write(title(self._title_for(loud, snapshot)))
        if new and not first and not self.replaying:
            self.bell()

    def _title_for(self, loud: list[Alert], snapshot: Snapshot) -> str:
        if not loud:
            return "llmtop"
        text = f"{alert_style.alert_word(loud[0])} {alert_style.subject(loud[0], snapshot)} · llmtop"
        return to_ascii(text) if self._ascii else text

    # --- keys -------------------------------------------------------------------------------------------------

    async def action_leave(self) -> None:
        """Leave the main screen: end the app."""
        self.exit(EXIT_DONE)

    def action_help(self) -> None:
        """Open the help on the screen on top."""
        top = self.screen
        self.open_screen("HelpScreen", top.NAME if isinstance(top, LlmtopScreen) else keys.MAIN)

    def action_help_or_hang(self) -> None:
        """Group the stacks of all ranks while a collective hangs; otherwise open the help."""
        snapshot = self.view.snapshot
        hangs = snapshot is not None and any(
            # A job of several nodes whose culprit is on another one: all ranks here wait alike.
            alert.id == "hung_collective"
            or (
                alert.id == "stalled"
                and any((rank.world_size or 1) > len(snapshot.ranks) for rank in snapshot.ranks)
            )
            for alert in snapshot.alerts
        )
        if hangs and not self.replaying and not isinstance(self.screen, screen_class("HangScreen")):
            self.open_screen("HangScreen")
        else:
            self.action_help()

    def action_open(self, screen: str) -> None:
        """Push the screen that a key of the table names."""
        self.open_screen(screen)

    def action_open_about(self, screen: str) -> None:
        """Push the screen that a key of the table names, about the process that the screen on top is about."""
        top = self.screen
        self.open_screen(screen, top.target_process() if isinstance(top, LlmtopScreen) else ProcessRef())

    def action_copy(self) -> None:
        """Send the command that the screen on top shows to the terminal's clipboard (OSC 52)."""
        top = self.screen
        command = printable(top.command()) if isinstance(top, LlmtopScreen) else ""
        if not command:
            self.notify("There is no command to copy here.")
            return
        self.copy_to_clipboard(command)
        hint = " (in tmux: set -g set-clipboard on)" if os.environ.get("TMUX") else ""
        self.notify(f"Sent to the terminal's clipboard{hint}: {command}", markup=False)

    def action_save(self) -> None:
        """Save what is shown as a picture (SVG) and as text, in the folder that llmtop was started in."""
        top = self.screen
        text = top.picture() if isinstance(top, LlmtopScreen) else ""
        self.notify(save_picture(self.export_screenshot(title="llmtop"), text), markup=False)

    def open_screen(self, name: str, *arguments: Any) -> None:
        """Make the screen of that class with `arguments`, and push it; a refusal is shown as one sentence."""
        try:
            self.push_screen(screen_class(name)(*arguments))
        except LlmtopError as error:
            self.notify(str(error), severity="warning", markup=False)

    async def action_back(self) -> None:
        """Go back to the screen before."""
        if len(self.screen_stack) > 1:
            await self.pop_screen()
            self.redraw()

    async def action_quit(self) -> None:
        """End the app with exit code 0."""
        self.exit(EXIT_DONE)

    def action_suspend_process(self) -> None:
        """Stop, if there is a shell that can continue us: a pane of its own would be dead for ever."""
        if has_shell():
            super().action_suspend_process()
        else:
            self.notify(
                "llmtop was not started from a shell, so it cannot be suspended; use q to quit.",
                severity="warning",
            )

    def action_pause(self) -> None:
        """Freeze the view, or stop the recording; go on at the second press."""
        history = self.view.history
        if isinstance(self._feed, ReplayControls):
            self._feed.toggle()
        elif history.instant is not None:
            self._go_live()
        elif history.newest is not None:
            history.instant, self.view.paused = history.newest, True
        self.redraw()

    def action_seek(self, seconds: float) -> None:
        """Move the instant that is shown.

        Args:
            seconds: forward, or back where negative. In a live monitor the history limits it, in a replay the
                recording.
        """
        feed = self._feed
        if isinstance(feed, ReplayControls):
            if seconds < 0 and feed.position <= 0:
                self.notify("The screen shows the beginning of the recording.")
            elif seconds > 0 and feed.ended:
                self.notify("The screen shows the end of the recording.")
            feed.seek(feed.position + seconds)
        elif seconds > 0 and self.view.history.instant is None:
            self.notify("The screen already shows the latest sample.")
        else:
            self._show(self.view.history.end + seconds)

    def action_seek_share(self, share: float) -> None:
        """Move the instant that is shown by a share (-1 to 1) of all that is remembered or recorded."""
        if isinstance(self._feed, ReplayControls):
            self.action_seek(share * self._feed.length)
        elif self._past is not None and (first := self._first_time()) is not None:
            newest = self.view.history.newest or first
            self.action_seek(share * (newest - first))
        else:
            self.notify("No history yet: llmtop has just started.")

    def action_last(self) -> None:
        """Show what is now; in a replay the end of the recording."""
        if isinstance(self._feed, ReplayControls):
            self._feed.seek(self._feed.length)
        else:
            self._go_live()
        self.redraw()

    def action_first(self) -> None:
        """Show the oldest that is known; in a replay the beginning of the recording."""
        if isinstance(self._feed, ReplayControls):
            self._feed.seek(0.0)
        else:
            self._show(0.0)

    def action_span(self, step: int) -> None:
        """Set all charts to the next longer span, or the next shorter one where `step` is negative."""
        history = self.view.history
        if history.chosen:
            place = SPANS.index(history.span) + step
        else:  # from what is shown, which may be none of those that can be chosen
            fixed = [one for one in SPANS if one is not None]
            longer = sum(one <= history.seconds for one in fixed)
            place = longer if step > 0 else sum(one < history.seconds for one in fixed) - 1
        if 0 <= place < len(SPANS):
            history.span = SPANS[place]
            self._reach_back()
            if not isinstance(self.screen, MainScreen):  # whose titles show it
                self.notify(f"Charts cover {time_line.span_words(history)}.")
            self.redraw()
        else:
            self.notify(f"The charts show the {'longest' if step > 0 else 'shortest'} span already.")

    def _reach_back(self) -> None:
        """Read what is kept of times that the charts show and their buckets do not reach back to."""
        if not self.replaying and self._newest is not None:
            self._loader.reach_back(self.view.history, self._newest, self._past)

    def _go_live(self) -> None:
        view = self.view
        view.history.instant, view.paused = None, False
        view.snapshot = self._newest or view.snapshot

    def _first_time(self) -> float | None:
        """Unix time of the oldest instant that a live screen can show."""
        seen = None if self._past is None else self._past.first_time
        known = [one for one in (seen, self._run_begin) if one is not None]
        return min(known, default=None)

    def _show(self, at: float) -> None:
        """Show a live view as it was at this unix time, or nearest to it."""
        view, past = self.view, self._past
        newest, begin = view.history.newest, self._run_begin
        seen = None if past is None else past.first_time
        if seen is not None and at < seen and (begin is None or begin >= seen) and self._ask_runs(at, seen):
            return
        if begin is not None and seen is not None and at < seen and begin < seen:
            if at < begin:
                self.notify("The screen shows the beginning of the run.")
            view.history.instant, view.paused = max(at, begin), False  # the charts move at once
            self._earlier.ask(max(at, begin), self._loader.older)
            self._reach_back()
            self.redraw()
            return
        found = None if past is None or newest is None or at >= newest else past.snapshot_at(at)
        if past is None or found is None:
            self._go_live()
        else:
            instant, snapshot = found
            if at < instant:
                beyond = past.shortened or NO_OLDER_SAMPLE
                self.notify(beyond, severity="warning" if past.shortened else "information", markup=False)
            view.history.instant, view.snapshot, view.paused = instant, snapshot, False
            self._reach_back()
        self.redraw()

    def _ask_runs(self, at: float, seen: float) -> bool:
        """Return whether files of runs are being read that reach back further than the oldest sample; the screen
        then moves to the instant by itself.

        Args:
            at: unix time to show.
            seen: that of the oldest sample.
        """
        known = len(self._loader.older)
        if self._newest is not None:
            self._loader.ask(self._newest, seen)
        if len(self._loader.older) == known:
            return False
        self._wanted = at
        self.notify("No older sample is kept: llmtop reads the files of the run.")
        return True

    def _show_earlier(self, at: float, snapshot: Snapshot | None) -> None:
        """Show a snapshot of a run's files, unless another instant is shown by now."""
        view = self.view
        if view.history.instant != at or snapshot is None:
            return
        held = [one.alert for one in view.history.alerts if one.since <= at <= one.until]
        view.snapshot = replace(snapshot, alerts=tuple(held))
        self.redraw()

    def action_speed(self, factor: float) -> None:
        """Play a recording `factor` times faster than now."""
        if isinstance(self._feed, ReplayControls):
            self._feed.set_speed(self._feed.speed * factor)
            self.redraw()

    def action_faster(self) -> None:
        """Request snapshots at the next shorter interval of `INTERVALS`."""
        self._set_interval(max((i for i in INTERVALS if i < self.view.interval * 0.999), default=INTERVALS[0]))

    def action_slower(self) -> None:
        """Request snapshots at the next longer interval of `INTERVALS`."""
        self._set_interval(min((i for i in INTERVALS if i > self.view.interval * 1.001), default=INTERVALS[-1]))

    def _set_interval(self, seconds: float) -> None:
        most = seconds == self.view.interval
        self._feed.set_interval(seconds)
        self.view.interval = seconds
        self.notify(f"A sample every {seconds:g} s" + (": this is the limit." if most else "."))
        self.redraw()

    def action_gpu_choice(self) -> None:
        """Choose the next selection: all GPUs, those of attached trainings, those requested at the start.

        A live hub asks the driver for no others then.
        """
        choices, view = self._selections, self.view
        if view.selection == "all" and not view.gpus():
            self.notify(NO_GPU)
            return
        view.selection = choices[(choices.index(view.selection) + 1) % len(choices)]
        if isinstance(self._feed, GpuChoice):
            self._feed.select(view.selection)
        else:
            view.only_attached = view.selection == "attached"
        words = {"all": "all GPUs", "attached": "the GPUs that attached trainings use"}
        self.notify(f"The table shows {words.get(view.selection, f'GPUs {view.selection}')}.")
        self.redraw()

    def action_next_theme(self) -> None:
        """Take the next of llmtop's own themes."""
        if self.depth not in ("full", "256"):
            self.notify(
                "This terminal has no 256 colors, which themes need; llmtop uses the colors of the terminal."
            )
            return
        names = [theme.name for theme in THEMES]
        current = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(current + 1) % len(names)]

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Yield the palette of commands: every key's action, and Textual's choice of themes."""
        yield SystemCommand("Theme", "Choose a color theme from the list of all themes", self.action_change_theme)
        here = screen.NAME if isinstance(screen, LlmtopScreen) else ""
        for key in keys.for_screen(here, replaying=self.replaying, demo=self.view.demo):
            if key.label and key.action != "command_palette":
                name = key.keys.split(",")[0]
                yield SystemCommand(
                    key.label.capitalize(), key.help, lambda n=name: self.call_next(self.action_press, n)
                )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
