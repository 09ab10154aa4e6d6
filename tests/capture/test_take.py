"""One capture from the key to the folder, by an engine that records nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from llmtop.capture import take as take_module
from llmtop.capture.base.engine import Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Plan, Recorded, Target
from llmtop.environment import collect
from llmtop.environment.model import CommandEnvironment
from llmtop.protocol import wire
from tests.capture.training_socket import training_at
from tests.support.processes import wait_for

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
    result = take_module.take(_plan(tmp_path), engine=_WritesUntil(collected))
    assert (result.folder / "environment.json").is_file()
    assert result.info.notes == []


def test_a_capture_without_its_environment_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected = threading.Event()

    def fails(pid: int) -> None:
        collected.set()
        raise ValueError(pid)

    monkeypatch.setattr(collect, "process_environment", fails)
    result = take_module.take(_plan(tmp_path), engine=_WritesUntil(collected))
    assert result.info.state == "done"
    assert not (result.folder / "environment.json").exists()
    assert result.info.notes == [
        f"environment.json is missing: a fault in llmtop itself (ValueError({os.getpid()}))"
    ]


class _Pauses(Engine):
    """Its training waits a minute after the window's last step, and reports the next one late or never."""

    name = "pauses"
    description = "nothing"

    def __init__(self, training: Future[socket.socket], *, reports: bool) -> None:
        self._training, self._reports = training, reports

    def refusal(self, target: Target) -> Refusal | None:
        return None

    def record(self, job: CaptureJob) -> Recorded:
        job.stage("record")
        begun, training = time.time_ns(), self._training.result(60)

        def report(step: wire.StepDone) -> None:
            training.sendall(wire.encode(wire.Steps(steps=[step])))

        report(wire.StepDone(index=1, started_unix_ns=begun, host_ns=10**8))
        wait_for(lambda: job.watch.steps_within(0, begun + 10**9)[os.getpid()])
        job.window = (begun, time.time_ns())
        job.stage("stop")
        job.stage("export")
        if self._reports:
            late = wire.StepDone(index=2, started_unix_ns=begun + 60_100_000_000, host_ns=10**8)
            threading.Timer(0.5, report, [late]).start()
        return Recorded(report=("# nothing\n", {}), paused_seconds=[60.0])


@pytest.mark.parametrize("reports", [True, False])
def test_the_step_that_a_pause_delayed_is_the_slowest_though_it_is_reported_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reports: bool
) -> None:
    monkeypatch.setattr(take_module, "PAUSED_STEP_SECONDS", LIMIT_S if reports else 0.1)
    path = tmp_path / "1.sock"
    with training_at(path) as training:
        plan = replace(_plan(tmp_path), targets=(Target(os.getpid(), socket=path),))
        result = take_module.take(plan, engine=_Pauses(training, reports=reports))
        training.result(60).close()
    assert result.info.step_seconds.slowest_during == (pytest.approx(60.1) if reports else None)
    assert bool(result.slowest_step_text) == reports
