"""How a run is brought to its end: as by ctrl+c, patiently, and never by force unless that was allowed."""

from __future__ import annotations

import time
from collections.abc import Callable

from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.interrupt import ToldToEnd
from llmtop.format import printable
from llmtop.system import procfs

SAY_SECONDS = 10.0
"""How often it is said what is waited for."""
KILL_SECONDS = 30.0
"""How long a command has to end before --kill kills it: a checkpoint may be written at ctrl+c."""
LEFT_SECONDS = 30.0
"""How long processes that the command left behind are waited for: their GPU memory is the next run's."""
_COMMAND_CHARACTERS = 60


class RunEnd:
    """Asks a command to end and keeps account of it. For a loop that calls `look` several times a second."""

    def __init__(
        self, command: CommandProcess, told: ToldToEnd, say: Callable[[str], None], *, kill: bool
    ) -> None:
        self._command, self._told, self._say, self._may_kill = command, told, say, kill
        self._passed_on = len(told.signals)
        self._asked_at: float | None = None
        self._said_at = 0.0
        self.killed = False
        self.abandoned = False
        """Whether it was left running because the person at the terminal did not want to wait."""

    @property
    def asked(self) -> bool:
        """Whether the command has been asked to end."""
        return self._asked_at is not None

    def ask(self) -> None:
        """Send it what ctrl+c sends; once."""
        if self._asked_at is None:
            self._asked_at = self._said_at = time.monotonic()
            self._command.interrupt()

    def look(self) -> bool:
        """Pass a ctrl+c on, say what is waited for, kill where that is due; returns whether to stop waiting."""
        if len(self._told.signals) > self._passed_on:
            self._passed_on = len(self._told.signals)
            if len(self._told.signals) > 1:
                self.abandoned = True
                return True
            self._say(
                "told to end: the command gets ctrl+c and is waited for; once more, and it is left running, "
                "with a last ctrl+c as llmtop ends"
            )
            if self.asked:
                self._command.interrupt()
            self.ask()
        if self._asked_at is not None:
            self._wait(time.monotonic(), self._asked_at)
        return False

    def _wait(self, now: float, asked_at: float) -> None:
        waited = now - asked_at
        if self._may_kill and waited > KILL_SECONDS and not self.killed:
            self.killed = True
            self._say(
                f"pid {self._command.pid} has not ended {waited:.0f} s after ctrl+c: killed, as --kill allows"
            )
            self._command.kill()
        elif now - self._said_at > SAY_SECONDS:
            self._said_at = now
            named = printable(procfs.command(self._command.pid) or "?", _COMMAND_CHARACTERS)
            then = f"killed after {KILL_SECONDS:.0f} s" if self._may_kill else "--kill would kill it after 30 s"
            self._say(
                f"waiting for pid {self._command.pid} ({named}): it has not ended {waited:.0f} s after ctrl+c; "
                f"{then}"
            )

    def wait_for_left(self) -> list[str]:
        """Wait for what the command left running; returns a sentence on what still does."""
        until, said = time.monotonic() + LEFT_SECONDS, False
        while (left := self._command.left()) and time.monotonic() < until and not self.abandoned:
            if self.killed:
                self._command.kill()
            if not said and time.monotonic() > until - LEFT_SECONDS + 2:
                said = True
                self._say(f"waiting for {_named(left)}, which the command left running")
            if len(self._told.signals) > max(self._passed_on, 1):
                break
            time.sleep(0.1)
        return [f"still running when it was over: {_named(left)}"] if left else []


def _named(pids: list[int]) -> str:
    shown = ", ".join(f"pid {pid} ({printable(procfs.command(pid) or '?', 40)})" for pid in pids[:3])
    return shown + (f" and {len(pids) - 3} more" if len(pids) > 3 else "")
