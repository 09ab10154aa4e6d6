"""Trainings that end while something of llmtop's is at work in them: start one, end it, see what is left.

Shared by the tests, `benchmarks/bench_exit.py` and `tests/gpu/check_exit.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from tests.support.processes import environment, wait_for
from tests.support.trainings import Heard, connect

LONG_SECONDS = 90.0
"""Against hanging; no claim of speed."""
PROGRAM = [sys.executable, "-m", "tests.support.ending_training"]
RUN = [sys.executable, "-m", "llmtop", "run"]


@dataclass(frozen=True)
class Way:
    """One way for a training to end."""

    name: str
    code: int
    """Its exit code without llmtop."""
    state: str | None
    """What the monitor hears of the capture last; None: nothing, the process was gone."""
    steps: int = 5
    """That the capture is to have."""
    after: tuple[str, ...] = ("step 3", "return")
    """What the training is told once the capture is armed."""
    signal: int = 0
    cancel: bool = False
    hang_up: bool = False


WAYS = (
    Way("500 steps asked for", 0, "failed", steps=500, after=("step 20", "return")),
    Way("3 steps left of 5", 0, "failed"),
    Way("no further step", 0, "failed", after=("evaluate", "return")),
    Way("raise", 1, "failed", after=("step 3", "raise")),
    Way("sys.exit", 7, "failed", after=("step 3", "exit")),
    Way("os._exit", 7, None, after=("step 3", "_exit")),
    Way("SIGINT", -signal.SIGINT, "failed", after=("step 3", "wait"), signal=signal.SIGINT),
    Way("SIGTERM", -signal.SIGTERM, None, after=("step 3", "wait"), signal=signal.SIGTERM),
    Way("cancelled after the last step", 0, "cancelled", after=("step 3", "return"), cancel=True),
    Way("monitor gone", 0, None, after=("step 3", "return"), hang_up=True),
    Way("fork", 0, "failed", after=("step 3", "fork")),
    Way("exec", 9, None, after=("step 3", "exec")),
)
"""Those of one process; see also `crash_a_rank`."""


@dataclass
class Ending:
    """What came of it."""

    code: int
    seconds: float
    """From the last word to the end of the process."""
    states: list[str] = field(default_factory=list)
    detail: str = ""
    left: list[str] = field(default_factory=list)
    """Files in the capture's folder."""


def command(*options: str, run: bool = False) -> list[str]:
    """The training's command line."""
    return [*RUN, "--", *PROGRAM, "--plain", *options] if run else [*PROGRAM, *options]


class Ready(subprocess.Popen[str]):
    """A training that has done its first steps; killed when the ``with`` is left."""

    def __init__(self, argv: list[str], **extra: str) -> None:
        super().__init__(
            argv,
            env=environment(**extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.hear("ready")

    def __exit__(self, *error: object) -> None:
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        super().__exit__(None, None, None)

    def hear(self, wanted: str) -> None:
        """Wait until it prints that line."""
        assert self.stdout is not None
        for line in self.stdout:
            if line == f"{wanted}\n":
                return
        raise AssertionError(f"it has not said {wanted}: {self.stderr.read() if self.stderr else ''}")

    def tell(self, line: str) -> None:
        """Give it an order, and wait until it has done it unless it is one to end."""
        assert self.stdin is not None
        self.stdin.write(f"{line}\n")
        self.stdin.flush()
        if line.startswith(("step", "evaluate", "wait", "thread", "daemon")):
            self.hear("done")


def end(
    way: Way, directory: Path, folder: Path, *options: str, engine: str = "torch.profiler", run: bool = False
) -> Ending:
    """Start a training, have it captured, and end it in that way.

    Args:
        way: how.
        directory: its LLMTOP_DIR.
        folder: for the capture's file.
        options: of `ending_training`.
        engine: one that the training offers.
        run: under `llmtop run` and untouched, rather than attached by hand.
    """
    with Ready(command(*options, run=run), LLMTOP_DIR=str(directory)) as training:
        heard = Heard(connect(directory, training))
        heard.connection.send(
            wire.CaptureRequest(id="it", engine=engine, path=str(folder / "trace.json"), steps=way.steps)
        )
        heard.until(lambda: _states(heard))
        for line in way.after[:-1]:
            training.tell(line)
        if way.after[0].startswith("step"):
            heard.until(lambda: _states(heard)[-1] == ("done" if way.state == "done" else "recording"))
        if way.cancel:
            heard.connection.send(wire.CaptureCancel(id="it"))
            heard.connection.send(wire.CaptureRequest(id="other", engine="no such engine", path="/"))
            heard.until(lambda: any(_is_of(one, "other") for one in heard.messages))
        if way.hang_up:
            heard.connection.close()
        training.tell(way.after[-1])
        begun = time.monotonic()
        if way.signal:
            training.send_signal(way.signal)
        code = training.wait(LONG_SECONDS)
        ending = Ending(code, time.monotonic() - begun)
        if not way.hang_up:
            heard.to_the_end()
        ending.states = _states(heard)
        ending.detail = next((one.detail for one in reversed(heard.messages) if _is_of(one, "it")), "")  # type: ignore[union-attr]
        ending.left = sorted(path.name for path in folder.iterdir())
        return ending


def bare(way: Way, directory: Path, *options: str) -> Ending:
    """The same training, not captured."""
    with Ready(command("--plain", *options), LLMTOP_DIR=str(directory)) as training:
        for line in way.after[:-1]:
            training.tell(line)
        training.tell(way.after[-1])
        begun = time.monotonic()
        if way.signal:
            training.send_signal(way.signal)
        return Ending(training.wait(LONG_SECONDS), time.monotonic() - begun)


def crash_a_rank(directory: Path, folder: Path, *options: str, engine: str = "torch.profiler") -> Ending:
    """Two ranks under torchrun, both captured, of which one raises; what the crashed one said of its capture."""
    crash = folder / "crash"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = ["-m", "tests.support.ending_training", "--crash-rank", *options]
    with subprocess.Popen(
        [*launcher, *program],
        env=environment(LLMTOP_DIR=str(directory), CRASH_WHEN=str(crash), OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as job:
        try:
            files = wait_for(lambda: len(found := sorted(directory.glob("*.sock"))) == 2 and found, LONG_SECONDS)
            both = [Heard(Connection.open(path, timeout_s=20)) for path in files or []]
            ranks = {one.connection.hello.rank: one for one in both}
            for rank, heard in ranks.items():
                path = str(folder / f"{rank}.json")
                heard.connection.send(wire.CaptureRequest(id="it", engine=engine, path=path, steps=500))
            for heard in ranks.values():
                heard.until(lambda heard=heard: "recording" in _states(heard))  # type: ignore[misc]
            begun = time.monotonic()
            crash.touch()
            code = job.wait(LONG_SECONDS)
            ending = Ending(code, time.monotonic() - begun)
            ending.states = _states(ranks[1].to_the_end())
            return ending
        finally:
            if job.poll() is None:
                job.terminate()  # torchrun ends its ranks, which are in sessions of their own
                job.wait(LONG_SECONDS)


def _is_of(message: wire.FromTraining, name: str) -> bool:
    return isinstance(message, wire.CaptureState) and message.id == name


def _states(heard: Heard) -> list[str]:
    return [one.state for one in heard.messages if isinstance(one, wire.CaptureState) and one.id == "it"]
