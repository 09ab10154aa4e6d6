"""The alerts that hold: rule, numbers, how they went, what to do next; and how long those held that have gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from textwrap import wrap
from typing import Final

from llmtop import format as fmt
from llmtop.model.signals import CHARTS
from llmtop.model.snapshot import Alert, Snapshot
from tui.core import keys
from tui.paint import alert_style
from tui.paint.charts import spark
from tui.paint.gpu_metrics import METRICS
from tui.paint.rows import Row, pad
from tui.panes import alert_rows
from tui.screens.base import NO_ALERT
from tui.screens.scrolling import ScrollingScreen

_CHART = 40
"""Columns of a history, where there is room."""


class AlertScreen(ScrollingScreen):
    """All alerts, the most severe first, the chosen one in full; below, those that have ended."""

    NAME = keys.ALERTS
    CSS_PATH = "help.tcss"
    MARGIN = 1

    def __init__(self) -> None:
        super().__init__()
        self._all = False
        """True if all are unfolded."""
        self._alert_lines: list[int] = []
        """The line at which each alert begins."""
        self._chosen_line: int | None = None
        """The line to bring into sight."""
        self._follow = False

    def alert(self) -> Alert | None:
        """Return the chosen one, else the most severe."""
        return self.view.alerts.selected_alert(self.view.alerts.all(self.view.snapshot))

    def lines(self, width: int) -> list[Row]:
        """Paint the alerts that hold, then those that did."""
        snapshot = self.view.snapshot
        rows: list[Row] = []
        self._chosen_line, self._alert_lines = None, []
        present = self.view.alerts.all(snapshot)
        if snapshot is None or not present:
            rows.append(Row(width).add(NO_ALERT, self.cell_theme.palette.strong))
            self._text(rows, "Each alert is shown with its rule, its numbers and what to do.", width)
        else:
            chosen = self.alert()
            for alert in present:
                self._alert_lines.append(len(rows))
                if alert is chosen:
                    self._chosen_line = len(rows)
                self._alert(rows, alert, snapshot, width, chosen=alert is chosen)
        self._add_past(rows, width)
        return rows

    def keep_in_sight(self, room: int, count: int) -> None:
        """Scroll to the alert that was just chosen."""
        if self._follow and self._chosen_line is not None:
            self.top = self._chosen_line
        self._follow = False

    def labels(self) -> dict[str, str]:
        """Return the process that the keys act on."""
        name = self.target_process().name if self.alert() is not None else ""
        return {"stacks": f"stacks of {name}", "capture": f"capture {name}"} if name else {}

    def refused_actions(self) -> frozenset[str]:
        """See `BoardScreen.refused_actions`: with one alert there is no next one."""
        several = len(self.view.alerts.all(self.view.snapshot)) > 1
        return super().refused_actions() | ({"next_alert"} if not several else set())

    def action_next_alert(self) -> None:
        """Choose the next alert."""
        present = self.view.alerts.all(self.view.snapshot)
        self._choose_next(present)
        self._follow, self.found_line = True, None
        self.redraw()

    def click_line(self, place: int) -> None:
        """Choose the alert under the pointer; on the chosen one, show the evidence of all or of that alone."""
        present = self.view.alerts.all(self.view.snapshot)
        number = sum(line <= place for line in self._alert_lines) - 1
        if not 0 <= number < len(present):
            return
        if present[number] is self.alert():
            self.action_whole()
        else:
            self.view.alerts.choose(present[number])
            self.redraw()

    def action_whole(self) -> None:
        """Show the evidence of all alerts, or of the chosen one alone."""
        self._all, self._follow = not self._all, True
        self.redraw()

    def _add_past(self, rows: list[Row], width: int) -> None:
        snapshot = self.view.snapshot
        past = [] if snapshot is None else self.view.alerts.ended_alerts(snapshot.time)
        if not past or snapshot is None:
            return
        palette, theme = self.cell_theme.palette, self.cell_theme
        heading = f"Ended alerts: {len(past)}, latest first"
        rows += [Row(width), Row(width).add(heading, palette.strong)]
        for one in past:
            alert, until = one.alert, one.until or snapshot.time
            row = Row(width).add(f"  {_moment(alert.since, snapshot.time)}", palette.text)
            row.add(f"  for {pad(alert_style.duration_text(alert, until), 8)}", palette.text)
            row.add(f"{alert_style.mark(alert, theme)} ", alert_style.ink(alert, theme))
            row.add(f"{alert_style.alert_word(alert)} ", palette.strong)
            row.add(f"{alert_style.subject(alert, snapshot)}  ", palette.text)
            rows.append(row.add(alert_rows.fitting(alert_rows.points(alert), row.free_cells), palette.dim))

    def _alert(self, rows: list[Row], alert: Alert, snapshot: Snapshot, width: int, *, chosen: bool) -> None:
        palette, glyphs = self.cell_theme.palette, self.cell_theme.glyphs
        head = Row(width).add(f"{glyphs.selected if chosen else ' '} ", palette.selected)
        head.add(
            f" {alert_style.mark(alert, self.cell_theme)} {alert_style.alert_word(alert)} ",
            alert_style.badge(alert, self.cell_theme),
        )
        age = alert_style.age(alert, snapshot.time)
        where = f"  {alert.severity}, {alert_style.subject(alert, snapshot)} for {age}"
        head.add(where, palette.strong)
        if self.view.alerts.is_muted(alert):
            head.add("  muted", palette.info)
        rows.append(head.add(alert_style.title(alert), palette.dim))
        self._text(rows, alert.summary, width)
        if chosen or self._all:
            self._evidence(rows, alert, width)
        rows.append(Row(width))

    def _evidence(self, rows: list[Row], alert: Alert, width: int) -> None:
        from llmtop.rules.engine import explain

        try:
            rule = explain(alert.id)
        except KeyError:  # a recording by a newer version
            rule = None
        if rule is not None:
            self._entry(rows, "means", alert_style.sentence(alert) + rule.meaning, width)
            self._entry(rows, "holds if", f"{rule.condition}{_hold_text(rule.hold_seconds)}", width)
            self._entry(rows, "based on", rule.source, width)
        evidence = "   ".join(measured_text(key, value) for key, value in alert.evidence.items())
        self._entry(rows, "evidence", evidence, width)
        if rule is not None and alert.gpu is not None:
            self._histories(rows, alert.gpu, rule.fields, width)
        self._entry(rows, "next", alert_rows.advice(alert, self.view, self.NAME), width)

    def _histories(self, rows: list[Row], uuid: str, fields: tuple[str, ...], width: int) -> None:
        """The GPU's values that decide the rule, over time, on their fixed axes."""
        gpu = next((one for one in self.view.gpus() if one.uuid == uuid), None)
        room = min(_CHART, width - 32)
        if gpu is None or room < 8:
            return
        for metric in METRICS:
            if metric.key not in {chart.key for signal, chart in CHARTS if signal.field in fields}:
                continue
            row = (
                Row(width)
                .add("  ", self.cell_theme.palette.text)
                .add(pad(metric.label, 9), self.cell_theme.palette.dim)
            )
            levels = self.view.history.levels(uuid, metric.key, room)
            row.add(spark(levels, room, self.cell_theme.glyphs), self.cell_theme.palette.text)
            rows.append(row.add("  " + metric.text(gpu), self.cell_theme.palette.text))

    def _text(self, rows: list[Row], text: str, width: int) -> None:
        lines = wrap(fmt.printable(text), max(width - 2, 12))
        rows.extend(Row(width).add("  " + line, self.cell_theme.palette.text) for line in lines)

    def _entry(self, rows: list[Row], name: str, text: str, width: int) -> None:
        for index, line in enumerate(wrap(fmt.printable(text), max(width - 12, 12))):
            row = Row(width).add("  ", self.cell_theme.palette.text)
            row.add(pad(name if index == 0 else "", 9), self.cell_theme.palette.dim)
            rows.append(row.add(line, self.cell_theme.palette.text))


def _moment(since: float, now: float) -> str:
    """Return when something began: the time of the day, with the day before it where that is another."""
    then = time.localtime(since)
    same_day = time.strftime("%F", then) == time.strftime("%F", time.localtime(now))
    return time.strftime("%H:%M:%S" if same_day else "%m-%d %H:%M:%S", then)


def _hold_text(seconds: float) -> str:
    return f"; for {seconds:g} s" if seconds else ""


_UNITS: Final[tuple[tuple[str, Callable[[float], str]], ...]] = (
    ("_bytes_per_s", fmt.rate),
    ("_bytes", fmt.size),
    ("_seconds", fmt.duration),
    ("_watts", fmt.watts),
    ("_pct", lambda value: f"{fmt.number(value, 1).removesuffix('.0')} %"),
    ("_mhz", lambda value: fmt.number(value, 0, " MHz")),
    ("_c", lambda value: fmt.number(value, 0, " °C")),
)
"""How the names of evidence end, and how their numbers are written."""
_CAPITALS = frozenset({"gpu", "sm", "dram", "cpu", "pcie", "nccl"})


def measured_text(key: str, value: object) -> str:
    """Return one number of an alert's evidence in words: "power 120 W" for power_watts."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    suffix, write = next((one for one in _UNITS if number and key.endswith(one[0])), ("", None))
    name = " ".join(word.upper() if word in _CAPITALS else word for word in key.removesuffix(suffix).split("_"))
    if write is not None and isinstance(value, (int, float)):
        return f"{name} {write(value)}"
    return f"{name} {fmt.figure(value) if isinstance(value, float) else fmt.printable(str(value))}"
