"""How a run is brought to its end: as by ctrl+c, patiently, and never by force unless that was allowed."""

from __future__ import annotations

import time
from collections.abc import Callable

from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.interrupt import Interrupts
from llmtop.format import printable
from llmtop.system import procfs

MESSAGE_SECONDS = 10.0
"""Interval between messages about the wait."""
KILL_SECONDS = 30.0
"""How long a command has to end before --kill kills it: a checkpoint may be written at ctrl+c."""
REMAINING_SECONDS = 30.0
"""How long processes that the command left behind are waited for: their GPU memory is the next run's."""
_COMMAND_CHARACTERS = 60


class RunEnd:
    """Asks a command to end and keeps account of it. For a loop that calls `poll` several times a second."""

    def __init__(
        self, command: CommandProcess, interrupts: Interrupts, say: Callable[[str], None], *, kill: bool
    ) -> None:
        """Prepare; `request_end()` asks the command to end.

        Args:
            command: the running command.
            interrupts: ctrl+c's of the person at the terminal; those from before are not passed on again.
            say: prints one line on stderr.
            kill: True: the command is killed `KILL_SECONDS` after it was asked to end (`--kill`).
        """
        self._command, self._interrupts, self._say, self._may_kill = command, interrupts, say, kill
        self._forwarded = len(interrupts.signals)
        self._asked_at: float | None = None
        self._message_at = 0.0
        self.is_killed = False
        self.has_timed_out = False
        """True if it was asked to end because no step ended for too long."""
        self.is_abandoned = False
        """True if it was left running because the person at the terminal did not want to wait."""

    @property
    def is_asked(self) -> bool:
        """Return True if the command has been asked to end."""
        return self._asked_at is not None

    def request_end(self) -> None:
        """Send it what ctrl+c sends; once."""
        if self._asked_at is None:
            self._asked_at = self._message_at = time.monotonic()
            self._command.interrupt()

    def request_end_after_timeout(self) -> None:
        """Call `request_end`. A command that ignores it is left running (or killed) after `KILL_SECONDS`."""
        self.has_timed_out = True
        self.request_end()

    def poll(self) -> bool:
        """Pass a ctrl+c on, say what is waited for, kill where that is due; returns whether to stop waiting."""
        if len(self._interrupts.signals) > self._forwarded:
            self._forwarded = len(self._interrupts.signals)
            if len(self._interrupts.signals) > 1:
                self.is_abandoned = True
                return True
            self._say(
                "told to end: the command gets ctrl+c and is waited for; once more, and it is left running, "
                "with a last ctrl+c as llmtop ends"
            )
            if self.is_asked:
                self._command.interrupt()
            self.request_end()
        if self._asked_at is not None:
            self._wait(time.monotonic(), self._asked_at)
            waited = time.monotonic() - self._asked_at
            self.is_abandoned = self.has_timed_out and not self._may_kill and waited > KILL_SECONDS
        return self.is_abandoned

    def _wait(self, now: float, asked_at: float) -> None:
        waited = now - asked_at
        if self._may_kill and waited > KILL_SECONDS and not self.is_killed:
            self.is_killed = True
            self._say(
                f"pid {self._command.pid} has not ended {waited:.0f} s after ctrl+c: killed, as --kill allows"
            )
            self._command.kill()
        elif now - self._message_at > MESSAGE_SECONDS:
            self._message_at = now
            named = printable(procfs.command(self._command.pid) or "?", _COMMAND_CHARACTERS)
            then = f"killed after {KILL_SECONDS:.0f} s" if self._may_kill else "--kill would kill it after 30 s"
            self._say(
                f"waiting for pid {self._command.pid} ({named}): it has not ended {waited:.0f} s after ctrl+c; "
                f"{then}"
            )

    def wait_for_remaining(self) -> list[str]:
        """Wait for what the command left running; returns a sentence on what still does."""
        until, is_reported = time.monotonic() + REMAINING_SECONDS, False
        while (remaining := self._command.remaining_pids()) and time.monotonic() < until and not self.is_abandoned:
            if self.is_killed:
                self._command.kill()
            if not is_reported and time.monotonic() > until - REMAINING_SECONDS + 2:
                is_reported = True
                self._say(f"waiting for {_process_names(remaining)}, which the command left running")
            if len(self._interrupts.signals) > max(self._forwarded, 1):
                break
            time.sleep(0.1)
        return [f"still running when it was over: {_process_names(remaining)}"] if remaining else []


def _process_names(pids: list[int]) -> str:
    shown = ", ".join(f"pid {pid} ({printable(procfs.command(pid) or '?', 40)})" for pid in pids[:3])
    return shown + (f" and {len(pids) - 3} more" if len(pids) > 3 else "")
