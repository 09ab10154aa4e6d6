"""The alerts that hold: what the rule is, the numbers that made it hold, how they went, and what to do next."""

from __future__ import annotations

from textwrap import wrap

from llmtop import format as fmt
from llmtop.snapshot import Alert, Snapshot
from tui import keys
from tui.paint import alert_style
from tui.paint.charts import spark
from tui.paint.gpu_metrics import METRICS
from tui.paint.rows import Row, pad
from tui.screens.scrolling import ScrollingScreen

_CHART = 40
"""Columns of a history, where there is room."""


class AlertScreen(ScrollingScreen):
    """All alerts, the worst first, each with its rule in words; scrolls."""

    NAME = keys.ALERTS
    CSS_PATH = "help.tcss"
    MARGIN = 1

    def lines(self, width: int) -> list[Row]:
        """Paint every alert with all there is to say of it."""
        snapshot = self.view.snapshot
        if snapshot is None or not snapshot.alerts:
            rows = [Row(width).add("No alert holds now.", self.look.palette.strong)]
            self._text(rows, "An alert appears here with its rule, its numbers and what to do next.", width)
            return rows
        rows = []
        for alert in alert_style.ordered(snapshot.alerts):
            self._alert(rows, alert, snapshot, width)
        return rows

    def _alert(self, rows: list[Row], alert: Alert, snapshot: Snapshot, width: int) -> None:
        from llmtop.rules.engine import explain

        palette = self.look.palette
        head = Row(width).add(
            f" {alert_style.mark(alert, self.look)} {alert_style.word(alert)} ",
            alert_style.badge(alert, self.look),
        )
        where = f"  {alert_style.subject(alert, snapshot)} for {alert_style.age(alert, snapshot.time)}"
        rows.append(head.add(where, palette.strong).add(alert_style.title(alert), palette.dim))
        self._text(rows, alert.summary, width)
        try:
            rule = explain(alert.id)
        except KeyError:  # a recording by a newer version
            rule = None
        if rule is not None:
            self._entry(rows, "means", alert_style.sentence(alert) + rule.meaning, width)
            self._entry(rows, "rule", f"{rule.condition}{_held(rule.hold_seconds)}", width)
            self._entry(rows, "source", rule.source, width)
        evidence = "   ".join(f"{key} {_number(value)}" for key, value in alert.evidence.items())
        self._entry(rows, "evidence", evidence, width)
        if rule is not None and alert.gpu is not None:
            self._histories(rows, alert.gpu, rule.fields, width)
        self._entry(rows, "next", alert.next, width)
        rows.append(Row(width))

    def _histories(self, rows: list[Row], uuid: str, fields: tuple[str, ...], width: int) -> None:
        """The GPU's values that decide the rule, over time, on their fixed axes."""
        gpu = next((one for one in self.view.gpus() if one.uuid == uuid), None)
        room = min(_CHART, width - 32)
        if gpu is None or room < 8:
            return
        for metric in METRICS:
            if not any(field.startswith(metric.key) or metric.key in field for field in fields):
                continue
            row = Row(width).add("  ", self.look.palette.text).add(pad(metric.label, 9), self.look.palette.dim)
            levels = self.view.history.levels(uuid, metric.key, room)
            row.add(spark(levels, room, self.look.glyphs), self.look.palette.text)
            rows.append(row.add("  " + metric.text(gpu), self.look.palette.text))

    def _text(self, rows: list[Row], text: str, width: int) -> None:
        lines = wrap(fmt.printable(text), max(width - 2, 12))
        rows.extend(Row(width).add("  " + line, self.look.palette.text) for line in lines)

    def _entry(self, rows: list[Row], name: str, text: str, width: int) -> None:
        for index, line in enumerate(wrap(fmt.printable(text), max(width - 12, 12))):
            row = Row(width).add("  ", self.look.palette.text)
            row.add(pad(name if index == 0 else "", 9), self.look.palette.dim)
            rows.append(row.add(line, self.look.palette.text))


def _held(seconds: float) -> str:
    return f"; for {seconds:g} s" if seconds else ""


def _number(value: object) -> str:
    if isinstance(value, float):
        return fmt.figure(value)
    return fmt.printable(str(value))
