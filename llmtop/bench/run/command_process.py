"""The command of a run as a process: started attached or bare, interrupted as by ctrl+c, and waited for."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal as signals
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmtop.bench.run.stderr_relay import INTERRUPTED, LINE_BYTES
from llmtop.errors import NotPossibleHere, UnusableInput
from llmtop.launch import run_lifetime
from llmtop.launch.environment import instrumented_environment, quiet_environment
from llmtop.naming import variable_names
from llmtop.system import procfs

_STARTER = Path(__file__).with_name("start_command.py")
_RELAY = Path(__file__).with_name("stderr_relay.py")
_RELAY_SECONDS = 1.0
"""How long the relay has to pass on what a command wrote before it ended."""


def check_program(command: Sequence[str], variables: Mapping[str, str]) -> None:
    """See that there is such a program.

    Raises:
        UnusableInput: there is none, or it may not be executed.
    """
    program = shutil.which(command[0], os.F_OK, variables.get("PATH"))
    if program is None:
        raise UnusableInput(f"{command[0]}: no such command; check its name and PATH")
    if not os.access(program, os.X_OK) or os.path.isdir(program):
        raise UnusableInput(f"{command[0]} cannot be executed: the file is not a program; check the command")


class CommandProcess:
    """The command, from its start to its end. What it writes goes to our standard error, and to no file."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        attached: bool = True,
        fixed_layout: bool = False,
    ) -> None:
        """Start it.

        Args:
            command: its words.
            environment: all of it, but what makes it attach.
            attached: whether as by `llmtop run`; else llmtop does nothing in it, not even where it is called.
            fixed_layout: start it without address randomization, where the system allows that.

        Raises:
            UnusableInput: there is no such command, or it may not be executed.
        """
        variables = dict(environment)
        variables.pop(variable_names.OFF, None)
        variables = (
            quiet_environment(instrumented_environment(variables))
            if attached
            else {**variables, variable_names.OFF: "1"}
        )
        variables[variable_names.BENCH] = "1"
        self._marker = run_lifetime.new_marker()
        variables[run_lifetime.MARKER] = self._marker
        check_program(command, variables)
        self._last_line = os.memfd_create("llmtop-last-line")
        self._relay = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_RELAY), str(self._last_line)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(self._last_line,),
            start_new_session=True,
        )
        assert self._relay.stdin is not None
        self.started_at, self._began = time.time(), time.monotonic()
        self._seconds: float | None = None
        with self._relay.stdin as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_STARTER), "fixed" if fixed_layout else "random", *command],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=2,
                stderr=stderr,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._known: dict[int, bool] = {}

    def has_ended(self) -> bool:
        """Return True if its first process has ended."""
        ended = self._process.poll() is not None
        if ended and self._seconds is None:
            self._seconds = time.monotonic() - self._began
        return ended

    @property
    def wall_seconds(self) -> float:
        """Return the time from its start to its end, or until now."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the command; None while it runs, and where a signal ended it."""
        code = self._process.returncode
        return code if code is not None and code >= 0 else None

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        code = self._process.returncode
        if code is None or code >= 0:
            return None
        try:
            return signals.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def last_stderr_line(self) -> str:
        """Return the last line that the command wrote to standard error, up to 4096 bytes; "" for none."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # what it left running may still write
            self._relay.wait(_RELAY_SECONDS if self.has_ended() else 0.0)
        return os.pread(self._last_line, LINE_BYTES, 0).rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Release the memory of the last line."""
        os.close(self._last_line)

    def owns(self, pid: int) -> bool:
        """Return True if a process is one of this run: its first one, or one that has its mark in the
        environment."""
        if pid == self.pid:
            return True
        if pid not in self._known or not self._known[pid]:
            try:
                self._known[pid] = procfs.environ(pid).get(run_lifetime.MARKER) == self._marker
            except NotPossibleHere:
                self._known.setdefault(pid, False)
        return self._known[pid]

    def remaining_pids(self) -> list[int]:
        """Return the processes of this run that are alive, without the first."""
        entry = f"{run_lifetime.MARKER}={self._marker}".encode()
        return [
            pid
            for pid in procfs.pids()
            if pid != self.pid and procfs.has_variable(pid, entry) and procfs.is_alive(pid)
        ]

    def process_groups(self) -> list[int]:
        """Return the process groups of this run: that of its first process, and those of processes that carry its
        mark (torchrun starts each rank in a session of its own)."""
        found = {self.pid}
        for pid in self.remaining_pids():
            with contextlib.suppress(OSError):
                found.add(os.getpgid(pid))
        return sorted(found)

    def interrupt(self) -> None:
        """Send SIGINT to its process group, as a terminal does at ctrl+c; its traceback is not shown."""
        os.pwrite(self._last_line, INTERRUPTED, LINE_BYTES)
        self._send(signals.SIGINT)

    def kill(self) -> None:
        """Kill its process group, and what else carries its mark."""
        self._send(signals.SIGKILL)
        for pid in self.remaining_pids():
            with contextlib.suppress(OSError):
                os.kill(pid, signals.SIGKILL)

    def _send(self, number: signals.Signals) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            os.killpg(self.pid, number)
