"""The main screen: GPUs, steps, ranks, alerts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TypeVar

from msgspec.structs import replace

from llmtop.model.snapshot import Alert, Snapshot
from llmtop.naming import file_names
from tui.core import keys
from tui.core.canvas import Placed
from tui.core.layout import Layout, Rect, arrange
from tui.core.sorting import SortedTable
from tui.paint import alert_style
from tui.paint.rows import Row
from tui.panes import alert_rows, header_footer, health_row, hidden_lines, node_table, phase_bars, steps, time_line
from tui.panes.node_table import Entry
from tui.screens.base import NO_GPU, LlmtopScreen
from tui.state.order import STATE, Order
from tui.state.view import View

_Line = TypeVar("_Line", str, int)
_PROCESSES_SECONDS = 3.0
_CAPTURES_SECONDS = 10.0
_LEAST_PANE = 2
_LEAST_PANES = {"processes": 4}
"""Rows below which a pane gives its place to a message altogether."""


def _captures() -> tuple[tuple[float, str], ...]:
    """Read which captures there are; in a thread."""
    from tui.capture import marks

    return marks.capture_marks(Path(file_names.CAPTURES))


_arranged = lru_cache(maxsize=8)(arrange)
"""The layout changes seldom from frame to frame."""


class MainScreen(SortedTable, LlmtopScreen):
    """GPUs, ranks, steps, alerts and this machine at one glance."""

    NAME = keys.MAIN
    CSS_PATH = "main.tcss"
    PINNED = "capture"

    def __init__(self) -> None:
        super().__init__()
        self._drawn_processes: tuple[object, list[Row]] | None = None
        self._looked_at = -_CAPTURES_SECONDS
        self._painted_size = (0, 0)
        """Cells that the screen had, the rows of a message among them: a message moves nothing else."""

    def redraw(self) -> None:
        """Show the view, and reload the list of captures at intervals."""
        super().redraw()
        now = monotonic()
        if now - self._looked_at > _CAPTURES_SECONDS:
            self._looked_at = now
            if os.path.isdir(file_names.CAPTURES):  # a call of a disk, which may be far away
                self.in_background(_captures, self._on_captures, "llmtop-listing")

    def _on_captures(self, captures: tuple[tuple[float, str], ...]) -> None:
        if captures != self.view.captures:
            self.view.captures = captures
            super().redraw()

    def layout_now(self, width: int, height: int) -> Layout:
        """Return where everything goes at this size."""
        return self._arrange(width, height, node_table.entries(self.view))

    def _arrange(self, width: int, height: int, lines: list[Entry]) -> Layout:
        view = self.view
        snapshot = view.snapshot
        rank = view.rank()
        shown = [] if rank is None else phase_bars.parts(rank)
        return _arranged(
            width,
            height,
            lines=len(lines),
            phases=0 if rank is None else len(phase_bars.with_untimed(rank, shown)),
            bars=1 if rank is None else len(steps.clocks_of(shown)) + health_row.is_known(rank, view),
            trains=rank is not None,
            rows=time_line.rows_wanted(view),
            alerting=() if snapshot is None else tuple(_urgent(lines, snapshot)),
            selected=next((i for i, one in enumerate(lines) if one.gpu and one.gpu.uuid == view.selected), None),
            notes=0 if snapshot is None else len(snapshot.host.notes),
            processes=0 if snapshot is None else len(snapshot.processes),
        )

    def parts(self, width: int, height: int) -> list[Placed]:
        """Paint every part where the layout puts it."""
        lines = node_table.entries(self.view)
        self._painted_size = width, height + self.reply_rows
        plan = self._arrange(width, height + self.reply_rows, lines)
        if self.reply_rows:
            plan = _shorten_layout(plan, self.reply_rows)
        self.page_lines = max(len(plan.entries), 1)
        return [*self._bars(plan), *self._table(plan, lines), *self._training(plan)]

    def _bars(self, plan: Layout) -> Iterator[Placed]:
        view, theme = self.view, self.cell_theme
        if plan.header:
            yield Placed(plan.header, [header_footer.header(view, plan.header.width, theme)])
        if plan.host:
            yield Placed(plan.host, [header_footer.host(view, plan.host.width, theme)])
        if plan.notes:
            yield Placed(plan.notes, [header_footer.notes(view, plan.notes.width, theme)])
        if plan.alerts:
            yield Placed(
                plan.alerts,
                alert_rows.paint(view, *plan.alerts[2:], theme),
            )
        if plan.footer:
            yield Placed(plan.footer, [self.paint_footer(plan.footer.width)])

    def _table(self, plan: Layout, lines: list[Entry]) -> Iterator[Placed]:
        view, theme = self.view, self.cell_theme
        if plan.empty:
            yield Placed(plan.empty, header_footer.no_gpu(view, *plan.empty[2:], theme))
        made = node_table.table(view, lines, plan.width)
        if made is None:
            return
        if plan.titles:
            span = time_line.span_words(view.history)
            made_of = (made.plan, made.figure, plan.width, span, self.shown_order(), theme)
            titles = view.kept.get("titles", made_of, lambda: node_table.titles(made, *made_of[2:]))
            yield Placed(plan.titles, [titles])
        for position, rect in plan.entries:
            yield Placed(rect, [node_table.line(made, lines[position], view, rect.width, theme)])
        if plan.more and view.snapshot is not None:
            shown = {position for position, _ in plan.entries}
            calling = sum(position not in shown for position in _urgent(lines, view.snapshot))
            hidden = [line for position, line in enumerate(lines) if position not in shown]
            kept = [lines[position] for position in shown]
            yield Placed(plan.more, [hidden_lines.paint(hidden, kept, calling, plan.more.width, theme)])

    def _training(self, plan: Layout) -> Iterator[Placed]:
        if plan.steps:
            yield Placed(plan.steps, steps.paint(self.view, *plan.steps[2:], self.cell_theme))
        if plan.timeline:
            yield Placed(plan.timeline, time_line.paint(self.view, *plan.timeline[2:], self.cell_theme))
        if plan.processes:
            yield Placed(plan.processes, self._processes(plan.processes))

    def _processes(self, rect: Rect) -> list[Row]:
        """Return the processes, whose figures are the least telling and the dearest to draw: anew every few
        seconds."""
        from tui.panes import process_table

        snapshot = self.view.snapshot
        key = (rect, self.cell_theme, None if snapshot is None else int(snapshot.time / _PROCESSES_SECONDS))
        if self._drawn_processes is None or self._drawn_processes[0] != key:
            self._drawn_processes = key, process_table.paint(self.view, *rect[2:], self.cell_theme)
        return self._drawn_processes[1]

    def alert(self) -> Alert | None:
        """Return the shown alert: the chosen one, else the most severe."""
        return self.view.alerts.selected_alert(self.view.alerts.unmuted(self.view.snapshot))

    def labels(self) -> dict[str, str]:
        """Return the process that the keys act on: the alert's row has no room for it beside the advice."""
        alert, snapshot = self.alert(), self.view.snapshot
        if alert is None or snapshot is None:
            return {}
        name = self.target_process().name
        return {"stacks": f"stacks {name}", "capture": f"capture {name}"} if name else {}

    def action_next_alert(self) -> None:
        """Show the next alert."""
        heard = self.view.alerts.unmuted(self.view.snapshot)
        self._choose_next(heard)
        self.redraw()

    def click(self, x: int, y: int) -> None:
        """Select the GPU under the pointer, a second click opens it; open the alerts or the processes."""
        lines = node_table.entries(self.view)
        plan = self._arrange(self._painted_size[0], self._painted_size[1], lines)
        if plan.alerts is not None and plan.alerts.y <= y < plan.alerts.y + plan.alerts.height:
            self.press_again("a")
        elif plan.processes is not None and plan.processes.y <= y < plan.processes.y + plan.processes.height:
            self.press_again("p")
        elif plan.titles is not None and y == plan.titles.y:
            self._click_title(x, lines)
        place = _entry_at(plan, x, y)
        if place is None:
            return
        gpu, rank = lines[place].gpu, lines[place].rank
        if gpu is None:
            self.view.rank_pid = None if rank is None else rank.pid
        elif gpu.uuid == self.view.selected:
            self.action_go()
        else:
            self.view.selected, self.view.rank_pid = gpu.uuid, None
        self.redraw()

    def _click_title(self, x: int, lines: list[Entry]) -> None:
        made = node_table.table(self.view, lines, self._painted_size[0])
        name = "" if made is None else node_table.title_at(made, x)
        if name:
            self.sort_by(name)

    @property
    def order(self) -> Order:
        """How the table is sorted; the view has it, since all that lists its lines follows."""
        return self.view.order

    @order.setter
    def order(self, order: Order) -> None:
        self.view.order = order

    def usual_order(self) -> Order:
        """Return the driver's order; without GPUs that of the ranks."""
        return node_table.USUAL_ORDER if self.view.gpus() else Order("rank")

    def sortable(self) -> list[str]:
        """Return the keys of the columns of GPUs and ranks that are shown, and STATE; nothing without rows."""
        lines = node_table.entries(self.view)
        made = node_table.table(self.view, lines, self._painted_size[0]) if lines else None
        return [] if made is None else [*(column.key for column in made.plan.columns), STATE]

    def descends(self, name: str) -> bool:
        """Return False for numbers that only name a GPU, a rank or a process."""
        return name not in ("gpu", "rank", "pid")

    def sort_rows(self, order: Order) -> None:
        super().sort_rows(order)
        if self._plan_now().titles is None:
            self.notify(f"Sorted by {order.name}, {'largest' if order.reverse else 'smallest'} first.")

    def _plan_now(self) -> Layout:
        return self._arrange(*self._painted_size, node_table.entries(self.view))

    def wheel(self, direction: int, y: int) -> None:
        """Select the line above or below on the table; elsewhere a shorter or a longer span."""
        lines = node_table.entries(self.view)
        plan = self._arrange(self._painted_size[0], self._painted_size[1], lines)
        rows = {rect.y for _, rect in plan.entries} | {rect.y for rect in (plan.titles, plan.more) if rect}
        if y in rows and len(self.view.gpus()) > 1:
            self.action_move(direction)
        else:
            self.llmtop.action_span(direction)

    def searchable(self) -> list[str]:
        """Return the text of each GPU and rank: number, name, host of the training, state, command."""
        return [_searched_text(entry, self.view) for entry in node_table.entries(self.view)]

    def position(self) -> int:
        """Return the line of the selected GPU or rank."""
        lines, rank = node_table.entries(self.view), self.view.rank_pid
        of_rank = [i for i, one in enumerate(lines) if rank is not None and one.rank and one.rank.pid == rank]
        of_gpu = [i for i, one in enumerate(lines) if one.gpu and one.gpu.uuid == self.view.selected]
        return next(iter([*of_rank, *of_gpu]), 0)

    def show_line(self, place: int) -> None:
        """Select the GPU or the rank of a line that was found."""
        lines = node_table.entries(self.view)
        if place < len(lines):
            gpu, rank = lines[place].gpu, lines[place].rank
            self.view.selected = self.view.selected if gpu is None else gpu.uuid
            self.view.rank_pid = None if rank is None else rank.pid

    def action_next_job(self) -> None:
        """Show the job that attached next."""
        jobs, job = self.view.jobs(), self.view.job()
        if len(jobs) < 2 or job is None:
            self.notify(
                "There is only one job, and it is shown."
                if jobs
                else "No training is attached: start one with llmtop run -- COMMAND."
            )
            return
        following = jobs[(jobs.index(job) + 1) % len(jobs)]
        first = next((rank for rank in self.view.ranks() if rank.job == following.name), None)
        if first is not None:
            self.view.rank_pid, self.view.selected = first.pid, None
        self.redraw()

    def move(self, step: int) -> None:
        """Move the selection by `step` GPUs, or by training processes without a GPU; by one, round the ends."""
        lines = node_table.entries(self.view)
        gpus = [one.gpu.uuid for one in lines if one.gpu is not None and not one.again]
        if gpus:
            self.view.selected, self.view.rank_pid = _moved(gpus, self.view.selected, step), None
        elif lines:  # a machine without a GPU
            shown = self.view.rank()
            pids = [one.rank.pid for one in lines if one.rank is not None]
            self.view.rank_pid = _moved(pids, None if shown is None else shown.pid, step)
        else:
            self.notify(NO_GPU)

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: with one training process there is no next one."""
        return super().refused_actions() | (frozenset() if len(self.view.ranks()) > 1 else {"next_rank"})

    def action_next_rank(self, step: int) -> None:
        """Show the steps of the training process that is `step` places further."""
        ranks_now = self.view.ranks()
        shown = self.view.rank()
        if shown is None or len(ranks_now) < 2:
            self.notify(
                "There is only one training process, and it is shown."
                if ranks_now
                else "No training is attached: start one with llmtop run -- COMMAND."
            )
        else:
            self.view.rank_pid = ranks_now[(ranks_now.index(shown) + step) % len(ranks_now)].pid
            self.redraw()

    def action_go(self) -> None:
        """Open the selected GPU, else the one with the worst alert, else the first."""
        gpus = self.view.gpus()
        if not gpus:
            self.notify(NO_GPU)
            return
        if self.view.position() is None:
            loud = {} if self.view.snapshot is None else alert_style.alerts_by_gpu(self.view.snapshot)
            self.view.selected = max(
                gpus, key=lambda g: alert_style.alert_rank(loud[g.uuid]) if g.uuid in loud else -1
            ).uuid
        self.llmtop.open_screen("GpuScreen")

    def action_gpu_number(self, number: str) -> None:
        """Open the GPU of that number."""
        if self.select_gpu(number):
            self.llmtop.open_screen("GpuScreen")


def _moved(lines: Sequence[_Line], selected: _Line | None, step: int) -> _Line:
    """Return the line that is `step` places from the selected one; by one, round the ends."""
    if selected not in lines:
        position = 0 if step > 0 else len(lines) - 1
        return lines[len(lines) - 1 if step > len(lines) else 0 if step < -len(lines) else position]
    position = lines.index(selected) + step
    return lines[position % len(lines) if abs(step) == 1 else min(max(position, 0), len(lines) - 1)]


def _shorten_layout(plan: Layout, rows: int) -> Layout:
    """Return the layout without its last rows: the lowest pane gives them, and nothing else moves."""
    footer = None if plan.footer is None else plan.footer._replace(y=plan.footer.y - rows)
    end = plan.height - (plan.footer is not None) - rows
    cut = {
        name: None
        if end - rect.y < _LEAST_PANES.get(name, _LEAST_PANE)
        else rect._replace(height=min(rect.height, end - rect.y))
        for name in ("steps", "timeline", "processes", "empty")
        if (rect := getattr(plan, name)) is not None
    }
    entries = tuple(one for one in plan.entries if one[1].y < end)
    more = None if plan.more is None or plan.more.y >= end else plan.more
    return replace(plan, footer=footer, height=plan.height - rows, entries=entries, more=more, **cut)


def _entry_at(plan: Layout, x: int, y: int) -> int | None:
    """Return the line of the table at a place of the screen."""
    inside = (place for place, at in plan.entries if at.x <= x < at.x + at.width and at.y <= y < at.y + at.height)
    return next(inside, None)


def _searched_text(entry: Entry, view: View) -> str:
    """Return the text of a line of the table in which the search looks."""
    gpu, rank = entry.gpu, entry.rank
    words = [] if gpu is None else [f"GPU {view.gpu_label(gpu)}", gpu.name, gpu.uuid]
    if rank is not None:
        words += [
            f"rank {rank.rank}",
            f"pid {rank.pid}",
            rank.host,
            rank.state,
            rank.job or "",
            rank.command or "",
        ]
    return " ".join(words)


def _urgent(lines: list[Entry], snapshot: Snapshot) -> list[int]:
    """Return the indices of the lines with a warning or a critical alert, the most severe first."""
    worst = alert_style.alerts_by_gpu(snapshot)
    of_pid = {alert.pid: alert for alert in reversed(alert_style.ordered(snapshot.alerts))}
    found: list[tuple[int, int]] = []
    for place, line in enumerate(lines):
        alert = None if line.gpu is None or line.again else worst.get(line.gpu.uuid)
        alert = alert or (None if line.rank is None else of_pid.get(line.rank.pid))
        if alert is not None and alert_style.alert_rank(alert) > 0:
            found.append((-alert_style.alert_rank(alert), place))
        elif line.rank is not None and line.rank.state in ("stalled", "stopped"):
            found.append((0, place))
    return [place for _, place in sorted(found)]
