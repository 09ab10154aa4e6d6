"""A pytest plugin (-p) that writes what became of each test to the file $LLMTOP_OUTCOMES, as JSON.

By test: "outcome" (passed, failed or skipped), "text" (the failure, or the reason of the skip), "seconds", and
"waited": the seconds of its call in which its process did not compute.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_outcomes: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure how long a test waits."""
    begun, computed = time.perf_counter(), time.process_time()
    try:
        return (yield)
    finally:
        waited = time.perf_counter() - begun - (time.process_time() - computed)
        item.user_properties.append(("waited", round(max(waited, 0.0), 2)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep an outcome; a failure of a fixture counts, also after the test has passed."""
    known = _outcomes.setdefault(report.nodeid, {"outcome": "passed", "text": "", "seconds": 0.0, "waited": 0.0})
    known["seconds"] = round(known["seconds"] + report.duration, 2)
    if report.when == "call":
        known["waited"] = dict(report.user_properties).get("waited", 0.0)
    if report.failed:
        known |= {"outcome": "failed", "text": str(report.longrepr)}
    elif report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        known |= {"outcome": "skipped", "text": reason.removeprefix("Skipped: ")}


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep a file that cannot be collected as a failure."""
    if report.failed:
        _outcomes[report.nodeid] = {
            "outcome": "failed",
            "text": str(report.longrepr),
            "seconds": 0.0,
            "waited": 0.0,
        }


def pytest_unconfigure() -> None:
    """Write all outcomes, in the process that hears of all tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ and "LLMTOP_OUTCOMES" in os.environ:
        Path(os.environ["LLMTOP_OUTCOMES"]).write_text(json.dumps(_outcomes))
