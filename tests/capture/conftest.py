"""Trainings to capture: real processes, real sockets, a real nsys."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from llmtop.capture import targets
from llmtop.capture.base.job import Target
from llmtop.protocol.client import Connection
from tests.support.nsys import NO_NSYS, find_nsys
from tests.support.processes import REPOSITORY, environment, wait_for

TRAINING = Path(__file__).with_name("training.py")
NVTX = REPOSITORY / ".cache" / "nvtx-0.2.10"
"""The newest nvtx that nsys 2023.4.4 records."""


@dataclass
class Training:
    """One running training, and what it printed."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def steps(self) -> int:
        """Steps done, as it said itself."""
        return sum(1 for line in self.lines if line.strip().isdigit())

    def wait_for_steps(self, more: int) -> None:
        """Wait until it has done so many steps more: it lives and works."""
        wanted = self.steps + more
        wait_for(lambda: self.steps >= wanted, what=f"{more} more steps of {self.lines[-5:]}")

    def wait_attached(self) -> Target:
        """Wait until it answers at its socket."""
        return wait_for(self._target, what="an attached training")

    def _target(self) -> Target | None:
        return next((target for target in targets.list_attached() if target.pid == self.pid), None)

    def end(self) -> int:
        """End it as a user would; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


Start = Callable[..., Training]


@pytest.fixture
def stops_training() -> None:
    """Mark of a test that stops a training: llmtop waits no longer than usual for its answer."""


@pytest.fixture(autouse=True)
def _patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for the answer of a training, which on a busy machine may get no CPU for seconds."""
    if "stops_training" not in request.fixturenames:
        patient = functools.partial(Connection.open, timeout_s=60.0)
        monkeypatch.setattr(Connection, "open", staticmethod(patient))


@pytest.fixture
def start(runtime_dir: Path) -> Iterator[Start]:
    """Start the training, alone or behind a command (`llmtop run --nsys --`, `nsys launch …`)."""
    with _starting(runtime_dir) as begin:
        yield begin


@pytest.fixture(scope="module")
def start_once() -> Iterator[Start]:
    """The same for trainings that several tests share: importing torch takes seconds."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="lt-") as folder:
        patch.setenv("LLMTOP_DIR", folder)
        with _starting(Path(folder)) as begin:
            yield begin


@contextmanager
def _starting(runtime_dir: Path) -> Iterator[Start]:
    started: list[Training] = []

    def begin(*arguments: str, behind: tuple[str, ...] = (), **variables: str) -> Training:
        variables.setdefault("PYTHONPATH", os.pathsep.join([str(NVTX), str(REPOSITORY)]))
        command = [*behind, sys.executable, str(TRAINING), *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(LLMTOP_DIR=str(runtime_dir), **variables),
            start_new_session=True,
        )
        training = Training(process)
        threading.Thread(target=_read, args=(training,), daemon=True).start()
        started.append(training)
        wait_for(lambda: training.steps > 0 or process.poll() is not None, 60, "the first step")
        assert process.poll() is None, "".join(training.lines)
        return training

    try:
        yield begin
    finally:
        for training in started:
            with suppress(ProcessLookupError):
                os.killpg(training.pid, signal.SIGKILL)
            training.process.wait(60)


def _read(training: Training) -> None:
    assert training.process.stdout is not None
    training.lines.extend(training.process.stdout)


@pytest.fixture
def llmtop_run() -> tuple[str, ...]:
    """The launcher, as a user calls it."""
    return (sys.executable, "-m", "llmtop", "run", "--no-auto")


@pytest.fixture
def under_nsys(start: Start, llmtop_run: tuple[str, ...]) -> Training:
    """A training that a user started with `llmtop run --nsys`."""
    return start(behind=(*llmtop_run, "--nsys", "--"))


@pytest.fixture
def real_nsys(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real nsys, for this process and all that it starts."""
    found = find_nsys()
    if found is None:
        pytest.skip(NO_NSYS)
    if not NVTX.is_dir():
        pytest.skip("no nvtx 0.2.10: tests/fetch_nsys.sh brings it to .cache")
    monkeypatch.setenv("LLMTOP_NSYS", found)
    return Path(found)


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """Where captures go."""
    return tmp_path / "captures"
