"""Name of the device in a report whose work ran on no GPU: on a TPU, or on the CPU, where XLA's operations are its
work."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Final

from msgspec import structs

from llmtop.document.model import Table
from llmtop.naming.device_names import ON_CPU, TPU
from llmtop.report.model import Report

_NUMBERED: Final = re.compile(r"\bGPU (?=\d)")
_BOUND: Final = re.compile(r"\bgpu-bound\b")
_OWN_CELLS: Final = re.compile(r"^(?:GPU \d|no CUDA call)|^(?:the|a) .*\bGPU\b")
"""Cells that begin with the device's number, or say what the host did: all others are names of the program."""


def device_word(report: Report) -> str:
    """Return "CPU", "TPU" or "GPU": what all devices of a report are."""
    names = {device.name or "" for device in report.devices}
    if names == {ON_CPU}:
        return "CPU"
    return "TPU" if names and all(name.startswith(TPU) for name in names) else "GPU"


def in_words_of_device(report: Report) -> Report:
    """Return the report with its device called what it is; unchanged for GPUs."""
    word = device_word(report)
    if word == "GPU":
        return report
    said = _renaming(word)
    findings = [
        structs.replace(
            one, summary=said(one.summary), fix=said(one.fix), next=said(one.next), confirm=said(one.confirm)
        )
        for one in report.findings
    ]
    timeline = report.timeline
    if timeline is not None:
        rows = [structs.replace(row, label=said(row.label)) for row in timeline.rows]
        timeline = structs.replace(timeline, rows=tuple(rows))
    whole = report.whole_timeline
    if whole is not None:
        devices = tuple(structs.replace(one, label=said(one.label)) for one in whole.devices)
        whole = structs.replace(whole, title=said(whole.title), devices=devices)
    return structs.replace(
        report,
        summary=said(report.summary),
        findings=tuple(findings),
        notes=tuple(map(said, report.notes)),
        timeline=timeline,
        whole_timeline=whole,
    )


def table_of_device(table: Table, word: str) -> Table:
    """Return a table with its device called what it is."""
    if word == "GPU":
        return table
    said = _renaming(word)
    title = said(table.title)
    return dataclasses.replace(
        table,
        title=title[:1].upper() + title[1:],
        columns=[dataclasses.replace(column, title=said(column.title)) for column in table.columns],
        rows=[tuple(said(cell) if _OWN_CELLS.match(cell) else cell for cell in row) for row in table.rows],
    )


def _renaming(word: str) -> Callable[[str], str]:
    """Return the function that calls a GPU of a text by another word."""

    def renamed(text: str) -> str:
        text = _NUMBERED.sub("device " if word == "CPU" else "TPU ", text)
        text = _BOUND.sub("device-bound", text).replace("GPU", word)
        return text.replace("CUDA call", "call")

    return renamed
