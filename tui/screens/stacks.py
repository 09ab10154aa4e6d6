"""The live Python stacks of a rank and its workers: what their threads do now, the script's own line marked."""

from __future__ import annotations

import time
from functools import partial
from textwrap import wrap

from llmtop import format as fmt
from llmtop.capture.py_spy import engine as py_spy
from llmtop.capture.py_spy.loading import LoadingMonitor
from llmtop.capture.py_spy.stacks import ThreadStack
from llmtop.errors import LlmtopError
from llmtop.model.snapshot import LoadingCost
from tui.core import keys
from tui.paint.rows import CellTheme, Row
from tui.screens.scrolling import ScrollingScreen
from tui.state import process_ref
from tui.state.process_ref import ProcessRef

REFRESH_SECONDS = 1.0
"""py-spy takes 0.05 s of another core for each look and does not pause the training; one that it cannot read is
asked itself."""


class StacksScreen(ScrollingScreen):
    """The Python stacks of one training process and its workers; tab goes to the next rank."""

    NAME = keys.STACKS
    CSS_PATH = "stacks.tcss"

    def __init__(self, about: ProcessRef | None = None) -> None:
        """Show the stacks of a process.

        Args:
            about: the process; None: the one whose steps are shown.
        """
        super().__init__()
        self._about = about
        self._pid: int | None = None
        self._threads: tuple[ThreadStack, ...] | None = None
        self._error = ""
        self._looked_at = 0.0
        self._looking = False
        self._all = False
        self._watching: LoadingMonitor | None = None
        self._loading: LoadingCost | None = None

    def on_unmount(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.close()

    def on_mount(self) -> None:
        """Look at the rank whose steps were shown, and again every second while nothing is frozen."""
        self._about = self._about or process_ref.rank_process(self.view.rank())
        self._pid = self._about.pid
        self.set_interval(REFRESH_SECONDS, self.read_again)
        self.read_again()

    def read_again(self) -> None:
        if self._pid is None or self._looking or (self.view.paused and self._threads is not None):
            return
        self._looking = True
        if self._watching is None or self._watching.pid != self._pid:
            self.on_unmount()
            self._watching, self._loading = LoadingMonitor(self._pid), None
        self.in_background(partial(_read_stacks, self._watching), self._show, "llmtop-stacks")

    def _show(self, looked: tuple[int, tuple[ThreadStack, ...], str, LoadingCost | None]) -> None:
        pid, found, error, loading = looked
        self._looking = False
        if pid == self._pid:
            self._loading = loading
            self._threads, self._error, self._looked_at = found, error, time.time()
            self.redraw()

    def lines(self, width: int) -> list[Row]:
        """Paint the stacks of the threads, the main one first, or why there are none."""
        theme = self.cell_theme
        palette = theme.palette
        title = Row(width).add(" Python stacks", palette.strong)
        if self._pid is None:
            why = self._about.why if self._about is not None else ""
            text = (
                f"{why or 'no training is attached'}. To read the stacks of any Python process, run: py-spy dump "
                "--pid PID"
            )
            return [
                title,
                Row(width),
                *(Row(width).add(f"   {line}", palette.text) for line in wrap(text, max(width - 6, 20))),
            ]
        rank = next((one for one in self.view.ranks() if one.pid == self._pid), None)
        name = "" if rank is None or rank.rank is None else f"rank {rank.rank}, "
        title.add(f" {theme.glyphs.dot} {name}pid {self._pid}", palette.text)
        command = "" if rank is None else fmt.printable(rank.command or "")
        title.add(f" {theme.glyphs.dot} {command}", palette.dim)
        rows = [title, Row(width)]
        if self._error:
            lines = wrap(fmt.printable(self._error), max(width - 6, 20))
            return [*rows, *(Row(width).add(f"   {line}", palette.warning) for line in lines)]
        if self._threads is None:
            return [*rows, Row(width).add("   reading the stacks with py-spy", palette.dim)]
        loading = () if self._loading is None else loading_rows(self._loading, width, theme)
        named = self._loading is not None and self._loading.cause != "unknown"
        rows += loading if named else ()
        busy = [one for one in self._threads if self._all or one.is_working or one is self._threads[0]]
        for thread in busy:
            rows += thread_rows(thread, width, theme)
        hidden = len(self._threads) - len(busy)
        if hidden:
            rows.append(
                Row(width).add(f"   {fmt.counted(hidden, 'waiting thread')} hidden; press w to show", palette.dim)
            )
        return [*rows, *(() if named else loading)]

    def target_process(self) -> ProcessRef:
        """Return the process whose stacks are shown."""
        return ProcessRef() if self._pid is None else ProcessRef(self._pid, f"pid {self._pid}", by_alert=True)

    def command(self) -> str:
        """Return the command that shows the same in a shell."""
        return "" if self._pid is None else f"py-spy dump --pid {self._pid}"

    def action_whole(self) -> None:
        """Show or hide the threads that wait."""
        self._all = not self._all
        self.redraw()

    def _others(self) -> list[int]:
        """Return the pids of the other training processes."""
        return [rank.pid for rank in self.view.ranks() if rank.pid != self._pid]

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: without another training process there is no next one."""
        return super().refused_actions() | (frozenset() if self._others() else {"next_rank"})

    def action_next_rank(self, step: int) -> None:
        """Show the stacks of the rank that is `step` places further."""
        ranks = self.view.ranks()
        pids = [rank.pid for rank in ranks]
        if not self._others():
            self.notify("There is no other training process.")
        else:
            at = pids.index(self._pid) if self._pid in pids else -step
            self._pid = pids[(at + step) % len(pids)]
            self._threads, self._error, self.top = None, "", 0
            self._looking = False
            self.read_again()
            self.redraw()


def thread_rows(thread: ThreadStack, width: int, theme: CellTheme) -> list[Row]:
    """Return one thread: its name and state, then its frames, innermost first; the script's own line stands
    out."""
    palette = theme.palette
    state = ", ".join(word for word, holds in (("running", thread.active), ("GIL", thread.owns_gil)) if holds)
    whose = "" if thread.worker is None else f"worker {thread.worker}, "
    head = Row(width).add(f" {whose}{thread.name}", palette.strong).add(f"  {thread.os_id}  ", palette.dim)
    rows = [head.add(state or "waiting", palette.info if thread.active else palette.dim)]
    here = thread.own_frame()
    for index, frame in enumerate(thread.frames):
        mark = f" {theme.glyphs.selected} " if index == here else "   "
        style = palette.cursor if index == here else palette.text if frame.own else palette.dim
        rows.append(Row(width).add(mark, palette.selected).add(frame.text, style))
    rows.append(Row(width))
    return rows


def loading_rows(cost: LoadingCost, width: int, theme: CellTheme) -> list[Row]:
    """Return rows on the loader's time, by the samples so far, and the advice."""
    room = max(width - 4, 20)
    said = [Row(width).add(f" {line}", theme.palette.strong) for line in wrap(fmt.printable(cost.summary), room)]
    todo = [Row(width).add(f" {line}", theme.palette.text) for line in wrap(fmt.printable(cost.advice), room)]
    looks = f" from {fmt.counted(cost.looks, 'sample')} of the loader"
    return [*said, *todo, Row(width).add(looks, theme.palette.dim), Row(width)]


def _read_stacks(watching: LoadingMonitor) -> tuple[int, tuple[ThreadStack, ...], str, LoadingCost | None]:
    """Return the stacks of a process, or the sentence that says why not; and what its loader costs, where it
    waits."""
    try:
        found = py_spy.dump(watching.pid)
        return watching.pid, found, "", watching.add(found)
    except LlmtopError as refusal:
        return watching.pid, (), str(refusal), None
