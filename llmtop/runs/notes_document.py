"""Notes of monitors on a run, as parts of its document."""

from __future__ import annotations

import time

from llmtop.document.model import Block, Paragraph, Table, columns
from llmtop.format import counted, duration, percent_text, size
from llmtop.model.severity import severity_rank
from llmtop.runs.energy import energy_text
from llmtop.runs.node_notes import RunAlert
from llmtop.runs.report import RunGpu, RunReport

MOST_ALERTS = 30
_SAME_SECONDS = 60.0
"""Alerts of several ranks stand in one row if they began and ended within the same minute."""
_LEFT_OUT = (
    "Left out are alerts about GPUs, memory, disks, networks and other processes, and for a training on a GPU "
    "those that the GPU must confirm."
)
_WHOLE_PCT = 99.0
"""Percent of the run: a monitor that is started with it comes some seconds later."""


def moment(at: float) -> str:
    """Return a unix time as local time: "2026-11-24 15:30"."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def blocks(report: RunReport) -> list[Block]:
    """Return alerts, captures and GPU figures of a run; nothing where they were not read."""
    if report.alerts is None:
        return []
    found: list[Block] = []
    if report.gpus:
        rows = [_gpu_row(gpu) for gpu in report.gpus]
        found.append(
            Table(
                "GPUs while a monitor watched (mean, and lowest to highest sample)",
                columns(("GPU", "name"), ("util", "power", "memory", "temp", "minutes")),
                rows,
            )
        )
    if report.alerts:
        found.append(
            Table(
                _title(report),
                columns(("since", "rule", "what"), ("for",)),
                [_alert_row(alerts, report) for alerts in _most_severe(report.alerts)],
                most=MOST_ALERTS,
            )
        )
    else:
        found.append(Paragraph("No alert held."))
    if report.captures:
        rows = [(moment(one.at), one.engine, one.verdict or "-", one.path) for one in report.captures]
        found.append(Table("Captures", columns(("taken", "engine", "verdict", "folder"), ()), rows))
    if report.gpus or report.gpu_hours is not None:
        found.append(Paragraph(energy_text(report.energy, report.cost, report.gpu_hours)))
    found.append(Paragraph(_watching(report), role="dim"))
    return found


def _most_severe(alerts: list[RunAlert]) -> list[list[RunAlert]]:
    """Return the alerts of each row: those that ranks had at the same time stand in one. Where there are too many,
    these are the most severe ones, in the order in which they came."""
    by_time: dict[tuple[object, ...], list[RunAlert]] = {}
    for place, alert in enumerate(alerts):
        until = None if alert.until is None else alert.until // _SAME_SECONDS
        key = alert.id, alert.severity, alert.recomputed, alert.since // _SAME_SECONDS, until
        by_time.setdefault(key if alert.rank is not None else (place,), []).append(alert)
    rows = sorted(by_time.values(), key=lambda row: (-severity_rank(row[0].severity), -row[0].since))
    return sorted(rows[:MOST_ALERTS], key=lambda row: row[0].since)


def _title(report: RunReport) -> str:
    alerts = report.alerts or []
    left_out = len(alerts) - sum(len(row) for row in _most_severe(alerts))
    text = counted(len(alerts), "alert")
    if left_out:
        text += f"; {left_out} of them, less severe or older, are in --json alone"
    if any(alert.recomputed for alert in alerts):
        text += " (* recomputed from the steps after the fact)"
    return text


def _alert_row(alerts: list[RunAlert], report: RunReport) -> tuple[str, ...]:
    alert, ranks = alerts[0], len({one.rank for one in alerts})
    until = alert.until or report.ended or report.started + report.wall_seconds
    held = duration(max(0.0, until - alert.since)) + ("" if alert.until is not None else " to the end")
    rank = "" if alert.rank is None else f"rank {alert.rank} "
    if ranks > 1:
        rank += f"and {counted(ranks - 1, 'other rank')}: "
    what = rank + (", ".join(alert.points) or alert.summary)
    return moment(alert.since), f"{alert.id}{'*' if alert.recomputed else ''}", what, held


def _gpu_row(gpu: RunGpu) -> tuple[str, ...]:
    def text(field: str, unit: str) -> str:
        known = gpu.signals.get(field)
        if known is None:
            return "-"
        mean, least, most = known
        return f"{mean:.0f} {unit} ({least:.0f} to {most:.0f})"

    memory = gpu.signals.get("mem_used_bytes")
    used = "-" if memory is None else f"{size(memory[0])} (to {size(memory[2])})"
    return (
        *(str(gpu.index), gpu.name, text("util_pct", "%"), text("power_watts", "W"), used),
        *(text("temperature_c", "°C"), f"{gpu.minutes:.0f}"),
    )


def _watching(report: RunReport) -> str:
    seconds = report.watched_seconds or 0.0
    share = 100 * seconds / report.wall_seconds if report.wall_seconds > 0 else 0.0
    if share >= _WHOLE_PCT:
        return "A monitor watched the whole run."
    how = "recomputed from its steps, its checkpoints and the logged values of each minute"
    if report.recomputed_since is not None and report.recomputed_since > report.started + 60.0:
        how += f"; before {moment(report.recomputed_since)} they are not"
    if seconds:
        who = f"A monitor watched {percent_text(share)} of the run; alerts of the rest are {how}."
    else:
        who = f"No monitor watched: alerts are {how}."
    return f"{who} {_LEFT_OUT}"
