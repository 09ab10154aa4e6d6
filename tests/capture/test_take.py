"""One capture from the key to the folder, by an engine that records nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from llmtop.capture.base.engine import Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Plan, Recorded, Target
from llmtop.capture.take import take
from llmtop.environment import collect
from llmtop.environment.model import CommandEnvironment

LIMIT_S = 240.0


class _WritesUntil(Engine):
    """Its stage "stop" lasts until the environment has been collected."""

    name = "writes"
    description = "nothing"

    def __init__(self, collected: threading.Event) -> None:
        self._collected = collected

    def refusal(self, target: Target) -> Refusal | None:
        return None

    def record(self, job: CaptureJob) -> Recorded:
        job.stage("record")
        assert not self._collected.is_set(), "the window is undisturbed"
        job.stage("stop")
        assert self._collected.wait(LIMIT_S)
        return Recorded(report=("# nothing\n", {}))


def _plan(folder: Path) -> Plan:
    return Plan(engine="py-spy", targets=(Target(os.getpid()),), parent=folder, seconds=1.0)


def test_the_environment_is_collected_while_the_tool_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected, real = threading.Event(), collect.process_environment

    def counted(pid: int) -> CommandEnvironment | None:
        try:
            return real(pid)
        finally:
            collected.set()

    monkeypatch.setattr(collect, "process_environment", counted)
    result = take(_plan(tmp_path), engine=_WritesUntil(collected))
    assert (result.folder / "environment.json").is_file()
    assert result.info.notes == []


def test_a_capture_without_its_environment_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected = threading.Event()

    def fails(pid: int) -> None:
        collected.set()
        raise ValueError(pid)

    monkeypatch.setattr(collect, "process_environment", fails)
    result = take(_plan(tmp_path), engine=_WritesUntil(collected))
    assert result.info.state == "done"
    assert not (result.folder / "environment.json").exists()
    assert result.info.notes == [
        f"environment.json is missing: a fault in llmtop itself (ValueError({os.getpid()}))"
    ]
