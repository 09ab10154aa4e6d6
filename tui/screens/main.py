"""The main screen: GPUs, steps, ranks, alerts."""

from __future__ import annotations

from collections.abc import Iterator

from textual.events import Click

from llmtop.snapshot import Alert
from tui import keys
from tui.canvas import Placed
from tui.layout import ONE_ALERT_ROW, Layout, arrange
from tui.paint import alert_style
from tui.paint.rows import Row
from tui.panes import alert_rows, gpu_card, gpu_lines, header_footer, rank_table, steps
from tui.screens.base import LlmtopScreen


class MainScreen(LlmtopScreen):
    """GPUs, ranks, steps, alerts and this machine at one glance."""

    NAME = keys.MAIN
    CSS_PATH = "main.tcss"

    def layout_now(self, width: int, height: int) -> Layout:
        """Where everything goes at this size."""
        view = self.view
        snapshot = view.snapshot
        gpus = view.gpus()
        loud = {} if snapshot is None else alert_style.by_gpu(snapshot)
        urgent = sorted(
            (i for i, gpu in enumerate(gpus) if gpu.uuid in loud and alert_style.weight(loud[gpu.uuid]) > 0),
            key=lambda i: -alert_style.weight(loud[gpus[i].uuid]),
        )
        return arrange(
            width,
            height,
            gpus=len(gpus),
            ranks=len(rank_table.lines(view)),
            alerting=urgent,
            selected=view.position(),
            notes=0 if snapshot is None else len(snapshot.host.notes),
            processes=0 if snapshot is None else len(snapshot.processes),
        )

    def parts(self, width: int, height: int) -> list[Placed]:
        """Paint every part where the layout puts it."""
        plan = self.layout_now(width, height)
        return [*self._bars(plan), *self._gpus(plan), *self._training(plan)]

    def _bars(self, plan: Layout) -> Iterator[Placed]:
        view, look = self.view, self.look
        if plan.header:
            yield Placed(plan.header, [header_footer.header(view, plan.header.width, look)])
        if plan.host:
            yield Placed(plan.host, [header_footer.host(view, plan.host.width, look)])
        if plan.notes:
            yield Placed(plan.notes, [header_footer.notes(view, plan.notes.width, look)])
        if plan.alerts:
            yield Placed(
                plan.alerts,
                alert_rows.paint(view, *plan.alerts[2:], look),
            )
        if plan.footer:
            yield Placed(plan.footer, [self.footer(plan.footer.width)])

    def _gpus(self, plan: Layout) -> Iterator[Placed]:
        view, look = self.view, self.look
        gpus = view.gpus()
        loud = {} if view.snapshot is None else alert_style.by_gpu(view.snapshot)
        if plan.empty:
            yield Placed(plan.empty, header_footer.no_gpu(view, *plan.empty[2:], look))
        if plan.titles:
            yield Placed(plan.titles, [self._titles(plan)])
        for position, rect in plan.cards:
            gpu = gpus[position]
            alert = loud.get(gpu.uuid)
            if plan.form == "full":
                rows = gpu_card.paint(gpu, view, rect.width, rect.height, look, alert)
            elif plan.form == "compact":
                rows = gpu_lines.paint_compact(gpu, view, rect.width, look, alert)
            else:
                rows = [gpu_lines.paint_line(gpu, view, rect.width, look, alert)]
            yield Placed(rect, rows)
        if plan.more:
            shown = {position for position, _ in plan.cards}
            hidden = [gpu for i, gpu in enumerate(gpus) if i not in shown]
            calling = sum(gpu.uuid in loud and alert_style.weight(loud[gpu.uuid]) > 0 for gpu in hidden)
            yield Placed(plan.more, [gpu_lines.more(hidden, calling, plan.more.width, look)])

    def _titles(self, plan: Layout) -> Row:
        assert plan.titles is not None
        row = Row(plan.titles.width)
        for x, width in sorted({(rect.x, rect.width) for _, rect in plan.cards}):
            row.to(x, self.look.palette.text)
            row.join(gpu_lines.titles(width, self.look))
        return row.end(self.look.palette.text)

    def _training(self, plan: Layout) -> Iterator[Placed]:
        if plan.steps:
            yield Placed(plan.steps, steps.paint(self.view, *plan.steps[2:], self.look))
        if plan.ranks:
            yield Placed(
                plan.ranks, rank_table.paint(self.view, *plan.ranks[2:], self.look, framed=plan.ranks_framed)
            )
        if plan.processes:
            from tui.panes import process_table

            yield Placed(plan.processes, process_table.paint(self.view, *plan.processes[2:], self.look))

    def alert(self) -> Alert | None:
        """The alert that is shown: the gravest one, or the one that was chosen."""
        return self.view.alerts.shown(self.view.alerts.heard(self.view.snapshot))

    def labels(self) -> dict[str, str]:
        """Whom the keys are about, where only one row tells the alert."""
        alert, snapshot = self.alert(), self.view.snapshot
        if alert is None or snapshot is None or self.size.height > ONE_ALERT_ROW:
            return {}
        name = self.whom().name
        return {"stacks": f"stacks {name}", "capture": f"capture {name}"} if name else {}

    def action_next_alert(self) -> None:
        """Show the next alert."""
        heard = self.view.alerts.heard(self.view.snapshot)
        if len(heard) < 2:
            self.notify("There is no other alert." if heard else "No alert holds now.")
        self.view.alerts.advance(heard)
        self.redraw()

    def on_click(self, event: Click) -> None:
        """Select the GPU under the pointer; a second click opens it."""
        gpus = self.view.gpus()
        for position, (x, y, width, height) in self.layout_now(*self.size).cards:
            if x <= event.screen_x < x + width and y <= event.screen_y < y + height:
                again = gpus[position].uuid == self.view.selected
                self.view.selected = gpus[position].uuid
                if again:
                    self.action_open_gpu()
                self.redraw()

    def action_select(self, step: int) -> None:
        """Move the selection by `step` GPUs."""
        gpus = self.view.gpus()
        if not gpus:
            return
        position = self.view.position()
        first = 0 if step > 0 else len(gpus) - 1
        self.view.selected = gpus[first if position is None else (position + step) % len(gpus)].uuid
        self.view.rank_pid = None
        self.redraw()

    def action_next_rank(self, step: int) -> None:
        """Show the steps of the training process that is `step` places further."""
        ranks_now = self.view.ranks()
        shown = self.view.rank()
        if shown is not None:
            self.view.rank_pid = ranks_now[(ranks_now.index(shown) + step) % len(ranks_now)].pid
            self.redraw()

    def action_open_gpu(self) -> None:
        """Open the selected GPU, else the one with the worst alert, else the first."""
        gpus = self.view.gpus()
        if not gpus:
            return
        if self.view.position() is None:
            loud = {} if self.view.snapshot is None else alert_style.by_gpu(self.view.snapshot)
            self.view.selected = max(
                gpus, key=lambda g: alert_style.weight(loud[g.uuid]) if g.uuid in loud else -1
            ).uuid
        self.llmtop.open_screen("tui.screens.gpu:GpuScreen")

    def action_gpu_number(self, number: str) -> None:
        """Open the GPU of that number."""
        if self.select_gpu(number):
            self.llmtop.open_screen("tui.screens.gpu:GpuScreen")
