"""A folder of captures as `llmtop capture` leaves it, made of recorded H200s."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmtop.analysis.analyze import analyze
from llmtop.capture.base.folder import PARENT, Info, StepTimes, write_info
from llmtop.memory.analyze import analyze_memory
from llmtop.memory.model import to_json as memory_json
from llmtop.report.model import to_json
from tests.support.data import HEALTHY, LAUNCH_BOUND
from tests.support.memory_allocator import LOSS, Allocator, Training

TAKEN_AT = 1_780_000_000.0
_IN_STEP = "MainThread;<module> (train_gpt.py:88);main (train_gpt.py:70);step"
FOLDED = f"""\
thread (0xA1): {_IN_STEP} (train_gpt.py:41);next (loader.py:6) 140
thread (0xA1): {_IN_STEP} (train_gpt.py:43) 60
thread (0xB2): pin;run (/usr/lib/python3.11/threading.py:982);wait (/usr/lib/python3.11/threading.py:331) 200
"""


def with_reports(here: Path) -> Path:
    """Two captures with a report each: a healthy one, and a later one that is launch-bound."""
    parent = here / PARENT
    for number, (name, source) in enumerate((("1-healthy", HEALTHY), ("2-launch", LAUNCH_BOUND))):
        folder = _begun(parent / name, "nsys", number)
        (folder / "report.json").write_bytes(to_json(analyze(source)))
        (folder / "capture.nsys-rep").write_bytes(b"x" * 1000)
        _describe(folder, "nsys", number, steps=5)
    return parent


def with_stacks(parent: Path, number: int = 2) -> Path:
    """One more: Python stacks."""
    folder = _begun(parent / f"{number + 1}-stacks", "py-spy", number)
    (folder / "rank0.folded").write_text(FOLDED)
    (folder / "rank0.speedscope.json").write_text("{}")
    threads = [{"thread": "MainThread", "samples": 200, "hottest": []}]
    report = {"engine": "py-spy", "rate_hz": 100, "processes": [{"pid": 41_207, "rank": 0, "threads": threads}]}
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
    _describe(folder, "py-spy", number, steps=None)
    return folder


def with_memory(parent: Path, number: int = 3) -> Path:
    """One more: a snapshot of the allocator, in which a line leaks."""
    folder = _begun(parent / f"{number + 1}-memory", "memory", number)
    allocator = Allocator()
    Training(allocator, layers=4, leak=LOSS).steps(6)
    made = allocator.write(folder / "rank0.memory.pickle")
    (folder / "report.json").write_bytes(memory_json(analyze_memory([made])))
    _describe(folder, "memory", number, steps=6)
    return folder


def _begun(folder: Path, engine: str, number: int) -> Path:
    folder.mkdir(parents=True)
    _describe(folder, engine, number, steps=None)
    return folder


def _describe(folder: Path, engine: str, number: int, steps: int | None) -> None:
    info = Info(
        engine=engine,
        state="done",
        started_at=TAKEN_AT + 60.0 * number,
        finished_at=TAKEN_AT + 60.0 * number + 5,
        command="python train_gpt.py --config 7b.yaml",
        pids=[41_207],
        ranks=[0],
        steps=steps,
        step_seconds=StepTimes(before_p50=0.111),
    )
    write_info(folder, info)
