"""The stacks of a rank on the screen: its workers' too; where py-spy refuses, those that the training tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.capture.py_spy import program as py_spy_program
from tests.capture.conftest import Start, start
from tests.tui.screens.test_capture_screens import beside, running, shows

__all__ = ["start"]  # a fixture


async def test_where_py_spy_refuses_the_training_tells_its_stacks_itself(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Unsupported version of Python: 3.14.0' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(py_spy_program, "find_py_spy", lambda: program)
    training = start()
    training.wait_attached()
    async with running(beside(training)) as (app, pilot):
        await pilot.press("s")
        shown = await shows(app, pilot, "MainThread", "main (training.py:")
        assert [line for line in shown.splitlines() if "▸" in line and "main (training.py:" in line]
        assert "llmtop-server" not in shown
    training.wait_for_steps(3)


async def test_workers_that_work_are_shown_below_and_those_that_wait_with_w(start: Start) -> None:
    training = start("--workers")
    training.wait_attached()
    async with running(beside(training), (120, 90)) as (app, pilot):
        await pilot.press("s")
        shown = await shows(app, pilot, "MainThread", "worker ", "decode (training.py:")
        assert shown.index("main (training.py:") < shown.index("decode (training.py:")
        assert "waits_for_orders (training.py:" not in shown
        await pilot.press("w")
        await shows(app, pilot, "waits_for_orders (training.py:")
