"""A capture knows the steps before and after it, and its report is corrected by them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import fmean

import pytest

from llmtop.analysis.analyze import analyze
from llmtop.capture import take
from llmtop.capture.base.job import CaptureJob, Plan, Recorded
from llmtop.capture.engines import ENGINES
from tests.capture.conftest import Start
from tests.support.made_up_engine import MadeUpEngine
from tests.support.processes import wait_for
from tests.support.traces import Capture, write_sqlite

SLOWER = 1.5
"""How much longer this engine makes a step, all of it launching."""


class _SlowEngine(MadeUpEngine):
    """Leaves the trace of a GPU training whose steps take longer than those that the training tells."""

    step = 0.0
    """Median step in microseconds, as the training reported it until the trace was written."""

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        super().record(job)
        assert job.window is not None
        stopped = job.window[1]
        wait_for(lambda: job.watch.whole_step_count(stopped) >= 5, 60, "steps after the window")
        self.step = step = (job.watch.median_seconds() or 0.0) * 1e6
        capture, period = Capture(), step * SLOWER
        for number in range(6):
            begin = number * period
            capture.range("step", begin, begin + period)
            for kernel in range(50):
                at = begin + kernel * (period - 0.8 * step) / 50
                capture.kernel(at + 20, at + 30, launched=at, took=5)
            capture.kernel(begin + period - 0.8 * step, begin + period, launched=begin + period - 0.8 * step - 6)
        return Recorded(traces=[write_sqlite(job.folder / "trace.sqlite", [capture])])


def test_the_report_is_of_the_step_that_the_training_tells(
    start: Start, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _SlowEngine()
    monkeypatch.setitem(ENGINES, _SlowEngine.name, engine)
    target = start().wait_attached()
    plan = Plan(engine=_SlowEngine.name, targets=(target,), parent=captures, steps=5)
    # Asked before the capture and once the report is made: further steps must not change what it rests on.
    result = take.take(plan, snapshot=lambda: time.sleep(0.5))
    found = result.report.correction
    told = json.loads((result.folder / "capture.json").read_bytes())["step_seconds"]
    assert told["after_p50"] is not None
    assert found.reason == "" or "differ by" in found.reason, "on a busy machine the steps themselves may vary"
    written = json.loads((result.folder / "report.json").read_bytes())["correction"]
    assert written["busy_pct"] == found.busy_pct
    if not found.reason:
        assert found.captured_seconds == pytest.approx(SLOWER * engine.step / 1e6, rel=0.01)
        known = [told[name] for name in ("before_p50", "after_p50") if told[name] is not None]
        assert found.undisturbed_seconds == pytest.approx(fmean(known), rel=1e-9)
        assert found.busy_pct == pytest.approx(80, abs=20)
        assert "without the profiler" in result.report.summary
    # Whoever opens the folder later reads the same steps from it.
    later = analyze(result.folder).correction
    assert later is not None
    assert later == found


def test_a_capture_json_without_steps_corrects_nothing(tmp_path: Path) -> None:
    capture = Capture()
    for begin in range(0, 60_000, 10_000):
        capture.range("step", begin, begin + 10_000)
        capture.kernel(begin + 4000, begin + 10_000, launched=begin + 3990)
    write_sqlite(tmp_path / "trace.sqlite", [capture])
    (tmp_path / "capture.json").write_text('{"engine": "nsys", "step_seconds": {}}')
    found = analyze(tmp_path).correction
    assert found is not None
    assert found.reason == "the step time without the profiler is unknown"
