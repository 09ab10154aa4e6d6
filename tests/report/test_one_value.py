"""One number has one value on the terminal, on the screen, in HTML, Markdown, JSON and a comparison."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from html import unescape
from pathlib import Path

import pytest

from llmtop.analysis.load_report import load_report
from llmtop.compare.compare import compare_reports
from llmtop.compare.document import comparison_document
from llmtop.document.html import write_html
from llmtop.document.markdown import write_markdown
from llmtop.document.text import write_text
from llmtop.format import duration, percent
from llmtop.report.document import report_document
from llmtop.report.model import Report, to_json
from tests.support.data import DATA
from tests.tui.paint.test_painting import LOOKS
from tui.panes import report as pane

CAPTURES = (
    "h200/nsys/healthy.sqlite.gz",
    "h200/nsys/launch_bound.sqlite.gz",
    "h200x2/nsys/healthy.sqlite.gz",
    "jax/cpu_own.trace.json.xz",
    "jax/cpu_window.trace.json.xz",
    "torch_xla/cpu_sync.trace.json.xz",
    "torch_xla/cpu_steptrace.trace.json.xz",
)


def _loaded(name: str, folder: Path) -> Report:
    packed = DATA / name
    path = folder / packed.stem
    unpack = gzip.decompress if name.endswith("gz") else lzma.decompress
    path.write_bytes(unpack(packed.read_bytes()))
    return load_report(path)


def _plain(text: str) -> str:
    """The text without the marks of Markdown and differences in space."""
    return re.sub(r"\s+", "", unescape(text).replace("\\", ""))


def _figures(report: Report) -> list[str]:
    """The figures that every output of the report has."""
    found = []
    if report.steps is not None and report.steps.seconds_p50 is not None:
        found += [duration(report.steps.seconds_p50)]
    for device in report.devices:
        found += [percent(device.busy_pct, 1), percent(device.idle_pct, 1), percent(device.nccl_exposed_pct, 1)]
    for kernel in report.kernels[:3]:
        found += [duration(kernel.seconds)]
    return found


@pytest.mark.slow("4 s each: reads whole captures")
@pytest.mark.parametrize("name", CAPTURES)
def test_every_output_and_a_comparison_with_itself_show_the_same_figures(name: str, tmp_path: Path) -> None:
    report = _loaded(name, tmp_path)
    document = report_document(report)
    rows = [
        *pane.verdict(report, "7-nsys", "", None, 160, LOOKS["dark"]),
        *pane.details(report, 160, LOOKS["dark"]),
    ]
    outputs = {
        "terminal": write_text(document, 160),
        "Markdown": write_markdown(document),
        "HTML": re.sub(r"<[^>]*>", "", write_html(document)),
        "screen": "\n".join("".join(segment.text for segment in row.segments) for row in rows),
    }
    figures = _figures(report)
    assert figures
    for output, text in outputs.items():
        plain = _plain(text)
        missing = [figure for figure in figures if _plain(figure) not in plain]
        assert not missing, (output, missing)
    kept = json.loads(to_json(report))
    assert [percent(one["busy_pct"], 1) for one in kept["devices"]] == [
        percent(one.busy_pct, 1) for one in report.devices
    ]
    found = compare_reports(report, report)
    changed = [one for one in found.figures if one.before != one.after]
    assert not changed
    text = _plain(write_text(comparison_document(found), 200))
    if report.steps is not None and report.steps.seconds_p50 is not None:
        assert _plain(duration(report.steps.seconds_p50)) in text, "the step time of the report"
