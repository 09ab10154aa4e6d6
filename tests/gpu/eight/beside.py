"""What runs side by side: a training of all ranks, a monitor that is heard, and a program on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.gpu.check_capture import end
from tests.gpu.eight.setting import Setting
from tests.support.processes import REPOSITORY

COLUMNS, ROWS = 200, 50


@contextlib.contextmanager
def training(
    setting: Setting, sockets: Path, script: Sequence[str], options: Sequence[str] | None = (), **extra: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a script with a rank on each GPU, below `llmtop run` with those options (None: without llmtop).

    Its output is to be read by who asks for it; what it says besides is in the setting's folder, ranks.log.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={setting.gpus}"]
    run = [] if options is None else [sys.executable, "-m", "llmtop", "run", *options, "--"]
    with (setting.folder / "ranks.log").open("w") as log:
        process = subprocess.Popen(
            [*run, sys.executable, *launch, *script],
            env=setting.training(sockets, **extra), cwd=REPOSITORY, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            end(process)


def ranks_said(setting: Setting) -> str:
    """The end of what the last training wrote."""
    path = setting.folder / "ranks.log"
    return path.read_text(errors="replace")[-2000:] if path.exists() else ""


class Watch:
    """A monitor that is heard and records: `snapshots` grows meanwhile."""

    def __init__(self, setting: Setting, sockets: Path, interval: float = 0.5) -> None:
        self.file = setting.folder / "watched.llmtop"
        self.snapshots: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "--json", "-i", str(interval), "--record", str(self.file), "--force"],
            env=setting.monitor(sockets), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.snapshots.append(json.loads(line))

    def until(
        self, holds: Callable[[dict[str, Any]], bool], seconds: float, training: subprocess.Popen[str]
    ) -> None:
        """Wait for a snapshot of which that holds.

        Raises:
            RuntimeError: none came in time, or the training or the monitor ended.
        """
        deadline = time.monotonic() + seconds
        while not (self.snapshots and holds(self.snapshots[-1])):
            if training.poll() is not None:
                raise RuntimeError(f"the training ended with {training.returncode}")
            if self.process.poll() is not None:
                raise RuntimeError(f"the monitor ended with {self.process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the ranks do not step within {seconds:.0f} s")
            time.sleep(0.1)

    def close(self) -> None:
        """End it; its recording is whole then."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(15)
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)


def stepping(ranks: int, step: int) -> Callable[[dict[str, Any]], bool]:
    """Whether so many ranks have done that step."""
    return lambda snapshot: len([one for one in snapshot["ranks"] if (one["step"] or 0) >= step]) >= ranks


class Drawn:
    """A program on a terminal of its own, which nobody looks at."""

    def __init__(self, command: Sequence[str], variables: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.drawn = 0
        """Bytes that it wrote."""
        usual = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        self.process = psutil.Popen(
            list(command), stdin=slave, stdout=slave, stderr=slave, env={**variables, **usual}, cwd=REPOSITORY,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            while data := os.read(self._master, 1 << 16):
                self.drawn += len(data)

    def family(self) -> list[psutil.Process]:
        """It and its children: llmtop asks the driver in a process of its own."""
        return [self.process, *self.process.children(recursive=True)]

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in self.family():
                one.kill()
        self.process.wait(10)
