"""`llmtop report` and `llmtop compare` on memory snapshots: exit codes, text in 60 lines, JSON, the timeline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmtop.__main__ import main
from llmtop.document.model import BRIEF_LINES
from llmtop.document.text import block_lines
from llmtop.memory.document import timeline_chart
from llmtop.memory.model import MemoryTimeline
from tests.support.memory_allocator import LOSS, MIB, STEP, Allocator, Training, frame


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """With more lines, sizes and phases than a screen has room for, an error and a leak."""
    allocator = Allocator(capacity=2000 * MIB)
    training = Training(allocator, leak=LOSS)
    training.steps(2)
    allocator.forget_history()
    for number in range(60):
        with allocator.phase(f"phase {number}"):
            allocator.alloc((number + 1) * 100_000, [frame(f"/home/me/{number}.py", number, "do"), *STEP])
    training.steps(6)
    with pytest.raises(MemoryError):
        allocator.alloc(4000 * MIB, STEP)
    return allocator.write(tmp_path / "busy.pickle")


@pytest.mark.parametrize("columns", ["60", "100", "200"])
def test_the_report_is_of_60_lines_at_most(
    busy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, text, _ = _run(capsys, "report", busy)
    assert code == 0
    assert len(text.splitlines()) <= BRIEF_LINES
    for wanted in ("could not give 3.91 GiB", "train.py:42 step", "Allocated and reserved", "Held by", "--full"):
        assert wanted in text
    full = _run(capsys, "report", busy, "--full")[1]
    assert len(full.splitlines()) > BRIEF_LINES
    assert "phase 59" in full
    assert "functional.py:3500 cross_entropy" in full


def test_json_has_all_of_it(busy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = _run(capsys, "report", busy, "--json")
    report = json.loads(text)
    assert code == 0
    assert (report["kind"], report["engine"], report["steps"]) == ("memory", "memory", 6)
    (device,) = report["devices"]
    assert device["reserved_bytes"] == sum(
        (device["allocated_bytes"], device["awaiting_free_bytes"], device["fragmentation"]["free_bytes"])
    )
    assert len(device["phases"]) == 63
    assert len(device["timeline"]["allocated_bytes"]) == len(device["timeline"]["reserved_bytes"])


def test_two_snapshots_give_the_leak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator = Allocator()
    training = Training(allocator, leak=LOSS)
    training.steps(3)
    one = allocator.write(tmp_path / "one.pickle")
    training.steps(50)
    allocator.steps_us = allocator.steps_us[-8:]
    two = allocator.write(tmp_path / "two.pickle")
    code, text, _ = _run(capsys, "compare", one, two)
    assert code == 0
    assert "200 B of it at train.py:42 step, which keeps 4 B with every step" in " ".join(text.split())
    found = json.loads(_run(capsys, "compare", one, two, "--json")[1])
    assert (found["kind"], found["verdict"]) == ("memory-growth", "leak")
    assert "cross_entropy" in _run(capsys, "compare", one, two, "--full")[1]


def test_a_snapshot_has_no_steps(busy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, error = _run(capsys, "report", busy, "--steps", "2")
    assert (code, text) == (2, "")
    assert "a memory snapshot has no steps" in error


def test_markdown_and_the_page_have_all_tables(
    busy: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, markdown, _ = _run(capsys, "report", busy, "--markdown")
    assert code == 0
    assert _run(capsys, "report", busy, "--html", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    for title in ("Allocated and reserved", "Held by", "Peak by phase", "Lines that allocated it"):
        assert f"## {title}" in markdown
        assert f"<h2>{title}" in page
    assert "<polygon" in page


def test_a_snapshot_and_something_else_cannot_be_compared(
    busy: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "report.json"
    other.write_text('{"schema": 1}')
    for pair in ((busy, other), (other, busy)):
        code, _, error = _run(capsys, "compare", *pair)
        assert code == 2
        assert "another memory snapshot" in error
    code, _, error = _run(capsys, "compare", busy, busy, "--fail-over", "5")
    assert code == 2
    assert "--fail-over" in error
    assert _run(capsys, "compare", busy, busy)[0] == 0


def test_names_in_a_snapshot_do_not_reach_the_terminal_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allocator = Allocator()
    with allocator.phase("\x1b[2Jphase"):
        allocator.alloc(MIB, [frame("/home/\x1b[31m.py", 1, "\x9bdo")])
    path = allocator.write(tmp_path / "odd.pickle")
    for options in ((), ("--full",), ("--json",)):
        text = _run(capsys, "report", path, *options)[1]
        assert not {"\x1b", "\x9b"} & set(text)
    assert "phase" in text


def test_the_drawing_is_as_high_as_what_is_reserved() -> None:
    timeline = MemoryTimeline(seconds=1.0, allocated_bytes=(0, 50, 100, 50), reserved_bytes=(100, 100, 100, 100))
    chart = replace(timeline_chart(timeline), rows=4)
    lines = [line.text for line in block_lines(chart, 40)][1:]
    assert [line.split("┤")[-1] for line in lines[:4]] == ["░░░░██░░", "░░░░██░░", "░░██████", "░░██████"]
    assert lines[4].endswith("─ 4.00 s")
