"""One number has one value on the terminal, on the screen, in HTML, Markdown, JSON and a comparison."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from html import unescape
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from llmtop.analysis.load_report import load_report
from llmtop.compare.compare import compare_reports
from llmtop.compare.document import comparison_document
from llmtop.document.html import write_html
from llmtop.document.markdown import write_markdown
from llmtop.document.model import Document
from llmtop.document.text import write_text
from llmtop.format import duration, percent, percent_text, size
from llmtop.model.bottlenecks import BOTTLENECKS
from llmtop.naming.own_phases import phase_label
from llmtop.ncu.document import report_blocks
from llmtop.ncu.judge import ncu_report
from llmtop.ncu.read import read
from llmtop.report.document import brief_document, report_document
from llmtop.report.model import Report, to_json
from llmtop.report_kinds.kernels_kind import KernelsDocument
from llmtop.report_kinds.kind import ReadOptions, Rendered
from llmtop.report_kinds.kinds import kind_named
from llmtop.system.inputs import DEFAULT
from tests.support.data import DATA
from tests.support.memory_allocator import LOSS, MIB, Allocator, Training
from tests.support.ncu_reports import page, unpacked
from tests.tui.paint.test_painting import LOOKS
from tui.paint.document import document_rows
from tui.paint.rows import Row
from tui.panes import report as pane

CAPTURES = (
    "h200/nsys/healthy.sqlite.gz",
    "h200/nsys/launch_bound.sqlite.gz",
    "h200x2/nsys/healthy.sqlite.gz",
    "h200/kineto/healthy_with_input_cost.json.gz",
    "jax/cpu_own.trace.json.xz",
    "jax/cpu_window.trace.json.xz",
    "torch_xla/cpu_sync.trace.json.xz",
    "torch_xla/cpu_steptrace.trace.json.xz",
)

_QUANTITY = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?\s?(?:ns|µs|ms|s|%|[KMGT]?i?B|[MGT]B/s|TFLOP/s)(?!\w)")


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


def _quantities(text: str) -> set[str]:
    """Numbers with a unit; a line may end between the two."""
    return {_plain(one) for one in _QUANTITY.findall(" ".join(line.strip() for line in text.splitlines()))}


def _drawn(rows: Sequence[Row]) -> str:
    return "\n".join("".join(segment.text for segment in row.segments) for row in rows)


def _all_have(figures: Sequence[str], outputs: dict[str, str]) -> None:
    assert figures
    for output, text in outputs.items():
        plain = _plain(text)
        missing = [one for one in figures if _plain(one) not in plain]
        assert not missing, (output, missing)


def _outputs(rendered: Rendered, document: Document) -> dict[str, str]:
    """What a person reads of it, by output; `document` is what the screen draws."""
    return {
        "terminal": rendered.text(160, None, full=True),
        "Markdown": rendered.markdown(),
        "HTML": re.sub(r"<[^>]*>", "", rendered.html()),
        "screen": _drawn(document_rows(document.blocks, 160, LOOKS["dark"])),
    }


@pytest.mark.slow("4 s each: reads whole captures")
@pytest.mark.parametrize("name", CAPTURES)
def test_every_output_and_a_comparison_with_itself_show_the_same_figures(name: str, tmp_path: Path) -> None:
    report = _loaded(name, tmp_path)
    document = report_document(report)
    chosen = set(range(len(report.findings)))
    rows = [
        *pane.verdict(report, "7-nsys", "", None, 160, LOOKS["dark"]),
        *pane.findings(report, 0, chosen, 160, LOOKS["dark"])[0],
        *pane.details(report, 160, LOOKS["dark"]),
    ]
    outputs = {
        "terminal": write_text(document, 160),
        "Markdown": write_markdown(document),
        "HTML": re.sub(r"<[^>]*>", "", write_html(document)),
        "screen": _drawn(rows),
    }
    _all_have(_figures(report), outputs)
    brief = write_text(brief_document(report), 160)
    outputs["HTML"] = re.sub(r"</?[^>]*>", " ", write_html(document))
    known = _quantities(outputs["terminal"])
    for output, text in (*outputs.items(), ("brief terminal", brief)):
        found = _quantities(text)
        assert output == "HTML" or not found - known, f"{output} has a figure that the terminal lacks"
        assert output == "brief terminal" or not known - found, f"{output} lacks a figure"
    if "kineto" in name:
        _check_profiler_trace(report, tmp_path / Path(name).stem)
    elif "nsys" in name:
        _check_nsys(report, tmp_path / Path(name).stem)
    kept = json.loads(to_json(report))
    assert [percent(one["busy_pct"], 1) for one in kept["devices"]] == [
        percent(one.busy_pct, 1) for one in report.devices
    ]
    found = compare_reports(report, report)
    changed = [one for one in found.figures if one.before != one.after]
    assert not changed
    _check_comparison(report, write_text(comparison_document(found), 200))


def _check_comparison(report: Report, text: str) -> None:
    """Compare the column "before" with what the report has under the same name."""
    cells = {
        row[0].lstrip("* "): row[1]
        for row in (re.split(r"  +", line.strip()) for line in text.splitlines())
        if row[1:]
    }
    if report.steps is not None and report.steps.seconds_p50 is not None:
        assert cells["median step"] == duration(report.steps.seconds_p50)
    judged = next((one for one in report.devices if one.judged), None)
    if judged is not None and len(report.devices) == 1:
        assert cells["GPU idle"] == percent(judged.idle_pct, 1)
        assert cells["GPU busy, whole capture"] == percent(judged.busy_pct, 1)
        shares = {f"lost: {BOTTLENECKS[loss].title}": percent(share, 1) for loss, share in judged.lost_pct.items()}
        assert shares.items() <= cells.items()
    if len({row.pid for row in report.phases}) == 1:
        hosts = {f"{phase_label(row.name)}, host": duration(row.host_seconds) for row in report.phases}
        assert hosts.items() <= cells.items()


def _check_profiler_trace(report: Report, path: Path) -> None:
    """Compare the report with sums over the events of a trace by torch.profiler."""
    events = [one for one in json.loads(path.read_bytes())["traceEvents"] if one["ph"] == "X"]
    device = [one for one in events if one.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    ends = _optimizer_ends(events, {one["args"]["correlation"]: one for one in device})[1:]
    assert report.steps is not None
    assert report.steps.seconds_p50 == pytest.approx(1e-6 * median(b - a for a, b in pairwise(ends)), rel=0.01)
    kernels = sum(one["dur"] for one in device if one["cat"] == "kernel" and one["name"] == report.kernels[0].name)
    assert report.kernels[0].seconds == pytest.approx(1e-6 * kernels, rel=0.01)
    stretches = sorted((one["ts"], one["ts"] + one["dur"]) for one in device)
    assert report.devices[0].busy_pct == pytest.approx(_busy_pct(stretches), rel=0.01)
    idle = 100 - _busy_pct(stretches, ends[0], ends[-1])
    assert report.devices[0].idle_pct == pytest.approx(idle, rel=0.01)


def _check_nsys(report: Report, path: Path) -> None:
    """Compare the report with sums over the tables of an nsys export."""
    kernel = next(one for one in report.kernels if ":" not in one.name)  # the others' names are shortened
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    with closing(sqlite3.connect(path)) as database:
        known = {one for (one,) in database.execute("SELECT name FROM sqlite_master")}
        names = [one for one in (f"CUPTI_ACTIVITY_KIND_{table}" for table in tables) if one in known]
        rows = [row for one in names for row in database.execute(f"SELECT deviceId, start, end FROM {one}")]
        steps = {
            one.device: [end for (end,) in database.execute(_STEP_ENDS, (one.device,))] for one in report.devices
        }
        ((total, count),) = database.execute(_KERNELS, (f"%{kernel.name}%",))
    for device in report.devices:
        stretches = sorted((start, end) for number, start, end in rows if number == device.device)
        assert device.busy_pct == pytest.approx(_busy_pct(stretches), rel=0.01)
        ends = steps[device.device][: device.steps + 1]
        if device.judged:
            assert report.steps.seconds_p50 == pytest.approx(
                1e-9 * median(b - a for a, b in pairwise(ends)), rel=0.01
            )
        assert device.idle_pct == pytest.approx(100 - _busy_pct(stretches, ends[0], ends[-1]), rel=0.01)
    assert (kernel.seconds, kernel.count) == (pytest.approx(1e-9 * total, rel=0.01), count)


_STEP_ENDS = """SELECT max(kernel.end) FROM NVTX_EVENTS range LEFT JOIN StringIds known ON known.id = range.textId
JOIN CUPTI_ACTIVITY_KIND_RUNTIME call
  ON call.globalTid = range.globalTid AND call.start >= range.start AND call.end <= range.end
JOIN CUPTI_ACTIVITY_KIND_KERNEL kernel ON kernel.correlationId = call.correlationId
  AND kernel.globalPid = call.globalTid / 0x1000000 * 0x1000000
WHERE coalesce(range.text, known.value) = 'optimizer' AND kernel.deviceId = ? GROUP BY range.start ORDER BY 1"""
"""When the last kernel of each optimizer step ended on one device."""
_KERNELS = """SELECT sum(end - start), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL
WHERE demangledName IN (SELECT id FROM StringIds WHERE value LIKE ?)"""


def _optimizer_ends(events: Sequence[dict[str, Any]], by_launch: dict[int, dict[str, Any]]) -> list[float]:
    """When the last kernel ended that each optimizer step launched, in µs."""
    ends = []
    for step in (one for one in events if one["name"].startswith("Optimizer.step") and one["cat"][0] == "u"):
        launched = [
            by_launch[one["args"]["correlation"]]
            for one in events
            if one.get("cat") in {"cuda_runtime", "cuda_driver"}
            and step["ts"] <= one["ts"] <= step["ts"] + step["dur"]
            and one["args"].get("correlation") in by_launch
        ]
        ends += [max(one["ts"] + one["dur"] for one in launched)] if launched else []
    return sorted(ends)


def _busy_pct(
    stretches: Sequence[tuple[float, float]], begin: float | None = None, end: float | None = None
) -> float:
    """Percent of the time in which at least one stretch runs; the stretches are sorted."""
    begin = stretches[0][0] if begin is None else begin
    end = max(last for _, last in stretches) if end is None else end
    busy, at = 0.0, begin
    for first, last in stretches:
        busy += max(0.0, min(last, end) - max(first, at))
        at = max(at, min(last, end))
    return 100 * busy / (end - begin)


def test_every_output_of_a_memory_snapshot_shows_what_the_allocator_holds(tmp_path: Path) -> None:
    allocator = Allocator()
    training = Training(allocator, layers=4, weight=8 * MIB, activation=16 * MIB)
    training.steps(3)
    before = allocator.write(tmp_path / "before.pickle")
    kept = [allocator.alloc(24 * MIB, LOSS) for _ in range(2)]
    after = allocator.write(tmp_path / "after.pickle")
    segments = pickle.loads(after.read_bytes())["segments"]
    blocks = [one for segment in segments for one in segment["blocks"]]
    reserved = sum(one["size"] for one in blocks)
    asked = sum(one["requested_size"] for one in blocks if one["state"] == "active_allocated")
    assert asked == 4 * 8 * MIB + 2 * 4 * 8 * MIB + len(kept) * 24 * MIB, "weights, AdamW's two tensors of each"
    kind = kind_named("memory")
    rendered = kind.read([after], ReadOptions())
    assert rendered is not None
    _all_have((size(reserved), size(asked)), _outputs(rendered, rendered.document(full=True)))
    device = json.loads(rendered.json())["devices"][0]
    assert (device["reserved_bytes"], device["requested_bytes"]) == (reserved, asked)
    grown = kind.compare(before, after, DEFAULT, None)
    assert grown is not None
    _all_have((size(reserved), size(asked), f"+{size(48 * MIB)}"), _outputs(grown, grown.document(full=True)))
    found = json.loads(grown.json())["devices"][0]
    assert found["reserved_after_bytes"] == reserved
    assert found["allocated_after_bytes"] - found["allocated_before_bytes"] == len(kept) * 24 * MIB


def test_every_output_of_a_kernel_report_shows_what_ncu_shows(tmp_path: Path) -> None:
    path = unpacked("gpt0", tmp_path)
    by_ncu = page("gpt0")
    names = {"compute (SM) throughput": "Compute (SM) Throughput", "DRAM throughput": "DRAM Throughput"}
    report = ncu_report(path, *read(path))
    rendered = KernelsDocument([report])
    shares = [percent_text(by_ncu[row][0], 1) for row in names.values()]
    outputs = _outputs(rendered, Document("", report_blocks(report)))
    _all_have([*shares, duration(1e-6 * by_ncu["Duration"][0])], outputs)
    kernel = json.loads(rendered.json())["kernels"][0]
    assert kernel["seconds"] == pytest.approx(1e-6 * by_ncu["Duration"][0], rel=0.01)
    values = {one["name"]: one["value"] for one in kernel["readings"]}
    assert [values[one] for one in names] == pytest.approx([by_ncu[row][0] for row in names.values()], rel=0.01)
