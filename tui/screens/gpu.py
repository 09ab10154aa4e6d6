"""One GPU large: what is wrong with it in full, and every figure as a chart with an axis."""

from __future__ import annotations

from textwrap import wrap

from msgspec.structs import replace

from llmtop import format as fmt
from llmtop.model.snapshot import Alert, Gpu
from tui.core import keys
from tui.core.canvas import Placed
from tui.core.layout import Rect
from tui.paint import alert_style
from tui.paint.rows import CellTheme, Row
from tui.panes import alert_rows, gpu_charts
from tui.panes.words import users
from tui.screens.base import LlmtopScreen


class GpuScreen(LlmtopScreen):
    """The selected GPU: its figures, and charts of them over the last minutes."""

    NAME = keys.GPU
    CSS_PATH = "gpu.tcss"

    def __init__(self) -> None:
        super().__init__()
        self._marker: gpu_charts.Marker = "braille"

    def _gpu(self) -> Gpu | None:
        return next((gpu for gpu in self.view.gpus() if gpu.uuid == self.view.selected), None)

    def alert(self) -> Alert | None:
        """Return the most severe alert of this GPU or of a training on it."""
        snapshot = self.view.snapshot
        if snapshot is None or self.view.selected is None:
            return None
        heard = tuple(self.view.alerts.unmuted(snapshot))
        return alert_style.alerts_by_gpu(replace(snapshot, alerts=heard)).get(self.view.selected)

    def parts(self, width: int, height: int) -> list[Placed]:
        """Paint facts above, and charts in the room below."""
        placed, body = self.header_and_footer(width, height)
        gpu = self._gpu()
        theme = self.cell_theme
        if gpu is None:
            gone = Row(width).add(
                " The driver no longer lists this GPU; press q to go back.", theme.palette.warning
            )
            rows = [gone, *(Row(width) for _ in range(body.height - 1))][: body.height]
            return [*placed, Placed(body, rows)]
        facts = self._facts(gpu, width, theme)[: max(body.height - 2, 0)]
        placed.append(Placed(Rect(0, body.y, width, len(facts)), facts))
        left = Rect(1, body.y + len(facts), width - 2, body.height - len(facts))
        return [*placed, *self._charts(gpu, left, theme)]

    def _charts(self, gpu: Gpu, area: Rect, theme: CellTheme) -> list[Placed]:
        metrics = gpu_charts.shown_metrics(gpu)
        placed = []
        timed = area.height >= 8
        if timed:
            area = area._replace(height=area.height - 1)
        places, hidden = gpu_charts.grid(len(metrics), area)
        if hidden:
            area = area._replace(height=area.height - 1)
            places, hidden = gpu_charts.grid(len(metrics), area)
            text = f"+{hidden} more charts {theme.glyphs.more}"
            sign = Row(area.width).add(text, theme.palette.dim)
            placed.append(Placed(Rect(area.x, area.y + area.height, area.width, 1), [sign]))
        if timed and not hidden:
            bottom = area.y + area.height
            for x, width in sorted({(rect.x, rect.width) for rect in places}):
                axis = gpu_charts.time_axis(self.view, width, theme)
                placed.append(Placed(Rect(x, bottom, width, 1), [axis]))
        for metric, rect in zip(metrics, places, strict=False):
            if rect.height > 1:
                placed.append(Placed(rect, gpu_charts.paint(metric, gpu, self.view, rect, theme, self._marker)))
        return placed

    def _facts(self, gpu: Gpu, width: int, theme: CellTheme) -> list[Row]:
        palette, dot = theme.palette, theme.glyphs.dot
        first = (
            Row(width)
            .add(f" GPU {self.view.gpu_label(gpu)} ", palette.strong)
            .add(fmt.printable(gpu.name), palette.text)
        )
        link = "" if gpu.pcie_gen is None else f"PCIe gen {gpu.pcie_gen} x{fmt.number(gpu.pcie_width)}"
        source = "" if gpu.pcie_source is None else f"PCIe rates by {gpu.pcie_source.upper()}"
        activity = "SM, tensor, DRAM by DCGM" if gpu.activity_source == "dcgm" else ""
        energy = (
            ""
            if gpu.energy_joules is None
            else f"{fmt.number(gpu.energy_joules / 3.6e6, 1)} kWh since driver start"
        )
        for text in (users(gpu, self.view, theme), fmt.printable(gpu.uuid), link, source, activity, energy):
            if text and len(text) + 3 <= first.free_cells:
                first.add(f" {dot} {text}", palette.dim)
        rows = [first.end(palette.text)]
        snapshot, alert = self.view.snapshot, self.alert()
        if gpu.error:
            rows.append(Row(width).add(f" {fmt.printable(gpu.error)}", palette.critical).end(palette.text))
        if alert is not None and snapshot is not None:
            age = alert_style.age(alert, snapshot.time)
            said = f" {alert_style.mark(alert, theme)} {alert_style.alert_word(alert)} {age} "
            bar = Row(width).add(" ", palette.text).add(said, alert_style.badge(alert, theme))
            bar.add(f"  {alert.severity}  ", palette.text)
            words = alert_rows.key_words(alert, self.view, self.NAME)
            alert_rows.add_keys(bar, words, bar.free_cells, theme)
            rows.append(bar.end(palette.text))
            advice = alert_rows.advice(alert, self.view, self.NAME)
            following = f" {theme.glyphs.arrow} {advice}" if advice else ""
            lines = wrap(fmt.printable(alert.summary + following), max(width - 4, 10))
            rows += [Row(width).add(f"   {line}", palette.text).end(palette.text) for line in lines]
        return rows

    def wheel(self, direction: int, y: int) -> None:
        """A shorter or a longer span of the charts."""
        self.llmtop.action_span(direction)

    def action_marker(self) -> None:
        """Change between braille and blocks: some fonts have no braille."""
        self._marker = "blocks" if self._marker == "braille" else "braille"
        self.redraw()

    def move(self, step: int) -> None:
        """Move to the GPU that is `step` places further, around the ends."""
        gpus = self.view.gpus()
        if gpus:
            place = (self.view.position() or 0) + step
            place = place % len(gpus) if abs(step) == 1 else min(max(place, 0), len(gpus) - 1)
            self.view.selected = gpus[place].uuid

    def action_gpu_number(self, number: str) -> None:
        """Move to the GPU of that number."""
        before = self.view.selected
        if self.select_gpu(number):
            if self.view.selected == before:
                self.notify(f"GPU {number} is already open.")
            self.redraw()
