"""A pytest plugin (-p) that records which test executes which lines, in each worker of pytest-xdist.

$LLMTOP_LINES is the folder of what it writes; $LLMTOP_LINES_OF has the packages and files, with commas. Lines that
a module's import executes belong to no test, and lines in child processes are not seen.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

_recording: list[coverage.Coverage] = []

if "PYTEST_XDIST_WORKER" in os.environ:  # at the import: before conftest files import the product
    _recording.append(
        coverage.Coverage(
            data_file=str(Path(os.environ["LLMTOP_LINES"]) / f".coverage.{os.getpid()}"),
            config_file=False,
            include=os.environ["LLMTOP_LINES_OF"].split(","),
        )
    )
    _recording[0].start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record what runs from a test's first fixture to its last as that test's."""
    for one in _recording:
        one.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        for one in _recording:
            one.switch_context("")


def pytest_unconfigure() -> None:
    """Write the lines of this worker."""
    for one in _recording:
        one.stop()
        one.save()
