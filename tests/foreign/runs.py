"""Running a program, with a monitor at the end of each of its processes or without, and what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtop.errors import LlmtopError
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from tests.foreign import digest, hands
from tests.foreign.program import Program
from tests.support.trainings import sockets

LIMIT_S = 240.0
"""For one run, against hanging: a compiler of C++ on a busy machine takes its time."""
_CONTACT_S = 25.0
"""For a socket, then for its Hello, against hanging. All waits together are shorter than `digest.PATIENCE_S`."""
_HEARD_WITHIN_S = 10.0
_QUIET_S = 0.2


@dataclass
class Heard:
    """What a monitor heard of one process."""

    hello: wire.Hello | None = None
    """None: it does not publish."""
    steps: list[wire.StepDone] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    exit: int
    stdout: str
    stderr: str
    files: dict[str, bytes]
    """What the program left in its folder, by relative path."""
    digests: dict[str, dict[str, Any]]
    """By the name of the process, what `digest.end` wrote."""
    heard: dict[str, Heard]


class Run:
    """A program that runs, in a folder of its own; `outcome` waits for its end."""

    def __init__(self, program: Program, place: Path, kind: str) -> None:
        """Start it.

        Args:
            program: which.
            place: a folder for all that it needs; made here.
            kind: "plain", "run" (behind ``llmtop run``), "hands" (with the calls of llmtop in it) or "both".
        """
        self._program, self._kind, self._place = program, kind, place
        self._folder, self._out = place / "work", place / "out"
        program.copy_to(self._folder)
        self._out.mkdir()
        self._sockets = Path(tempfile.mkdtemp(prefix="lt-"))  # short: a socket's path has 107 characters at most
        below = [str(Path(sys.executable).parent / "llmtop"), "run", "--"] if kind in ("run", "both") else []
        with (place / "stdin").open("w+") as given:
            said = program.says("stdin")
            given.write(f"{said}\n" if said else "")
            given.seek(0)
            self._process = subprocess.Popen(
                [*below, *program.command(self._folder)],
                cwd=self._folder,
                env=self._environment(),
                stdin=given,
                stdout=(place / "stdout").open("wb"),
                stderr=(place / "stderr").open("wb"),
                start_new_session=True,  # so that an interrupt of its group is not ours
            )
        self._heard: dict[str, Heard] = {}
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        if kind != "plain":
            self._watcher.start()

    def outcome(self) -> Outcome:
        """Wait for the end and gather.

        Raises:
            subprocess.TimeoutExpired: it has not come to an end.
        """
        code = self._process.wait(LIMIT_S)
        if self._watcher.is_alive():
            self._watcher.join(LIMIT_S)
        return Outcome(
            exit=code,
            stdout=self._neutral((self._place / "stdout").read_bytes()).decode(errors="surrogateescape"),
            stderr=self._neutral((self._place / "stderr").read_bytes()).decode(errors="surrogateescape"),
            files={
                str(path.relative_to(self._folder)): self._neutral(path.read_bytes())
                for path in sorted(self._folder.rglob("*"))
                if path.is_file() and "__pycache__" not in path.parts
            },
            digests={
                path.stem: json.loads(self._neutral(path.read_bytes()))
                for path in sorted(self._out.glob("*.json"))
            },
            heard=self._heard,
        )

    def end(self) -> None:
        """Leave nothing behind, whatever came of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the children that it has left, too
        self._process.wait(100)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _neutral(self, data: bytes) -> bytes:
        """The same without what must differ: where it ran, and times, pids and random names that torch writes."""
        data = data.replace(os.fsencode(self._folder), b"<folder>").replace(os.fsencode(self._place), b"<place>")
        data = re.sub(rb"/torch_\d+_\d+_\d+", b"/torch_<pid>_<random>_<number>", data)
        return re.sub(rb"(?m)^([VIWE])\d{4} [\d:.]+ +\d+ ", rb"\1 <time> <pid> ", data)

    def _environment(self) -> dict[str, str]:
        foreign = ("PYTHON", "LLMTOP_", "FOREIGN_", "OMP_", "COV_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        env |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "HOME": str(self._folder)}
        env["XDG_STATE_HOME"] = str(self._place / "state")  # llmtop keeps a record of each run there
        env |= {"TMPDIR": tempfile.gettempdir(), "GLOO_SOCKET_IFNAME": "lo", "MKL_NUM_THREADS": "1"}
        env |= self._program.environment(self._folder)
        env |= {digest.OUT: str(self._out), "LLMTOP_DIR": str(self._sockets)}
        if self._kind != "plain":
            env[digest.WATCHED] = "1"
        if not self._program.says("compiler"):
            env[digest.LIGHT] = "1"
        if self._kind in ("hands", "both"):
            env[hands.HANDS] = "1"
        return env

    # --- the monitor ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at each process that comes to its end, until all have gone."""
        known: set[str] = set()
        lookers: list[threading.Thread] = []
        while True:
            gone = self._process.poll() is not None
            for path in self._out.glob("*.here"):
                if path.stem not in known:
                    known.add(path.stem)
                    self._heard[path.stem] = Heard()
                    lookers.append(threading.Thread(target=self._look, args=(path,), daemon=True))
                    lookers[-1].start()
            if gone:
                break
            time.sleep(0.01)
        for looker in lookers:
            looker.join(LIMIT_S)

    def _look(self, here: Path) -> None:
        """Hear what a process has to say, let it go on to its end, and listen until it hangs up."""
        heard = self._heard[here.stem]
        try:
            pid = int(here.read_text())
            until = time.monotonic() + (0.0 if self._steps_of(here) == "none" else _CONTACT_S)
            # A process waits only a moment for its socket before it goes on.
            while not (found := [file for file in sockets(self._sockets) if file.pid == pid]):
                if time.monotonic() > until:
                    break
                time.sleep(0.02)
            for file in found:
                self._listen(file.path, here, heard)
        except LlmtopError:
            pass  # no process has attached at all
        finally:
            here.with_suffix(".go").touch()

    def _steps_of(self, here: Path) -> str:
        return self._program.says("steps", self._kind, here.stem) or "none"

    def _listen(self, path: Path, here: Path, heard: Heard) -> None:
        expected = self._steps_of(here)
        last = int(expected.rpartition(".")[2]) - 1 if expected[-1].isdecimal() else None
        try:
            connection = Connection.open(path, timeout_s=_CONTACT_S)
        except ConnectionError:
            return  # of what the process was before it executed another program
        heard.hello = connection.hello
        until = time.monotonic() + (_HEARD_WITHIN_S if last is not None else _QUIET_S)
        with connection, contextlib.suppress(ConnectionError):
            while time.monotonic() < until and not (heard.steps and heard.steps[-1].index == last):
                _take(connection, heard, _QUIET_S)
            here.with_suffix(".go").touch()
            until = time.monotonic() + LIMIT_S
            while time.monotonic() < until:
                _take(connection, heard, 0.5)


def _take(connection: Connection, heard: Heard, seconds: float) -> None:
    for message in connection.receive(seconds):
        if isinstance(message, wire.Steps):
            heard.steps += message.steps
        elif isinstance(message, wire.Hello):
            heard.hello = message
