"""Run programs in short turns: `python -I -S turn_taker.py`, one process for all programs of a round.

One program runs (SIGCONT to its process groups) while the others are stopped (SIGSTOP). A process of its own has
two reasons: the bench's own work delays no turn, and a bench that is killed leaves no program stopped. Standard
input then ends, and this process continues all programs.

Standard input has a command per line: `groups SIDE PGID…` (the process groups of a program), `hold SIDE` (stop it
until the turns begin), `turns NANOSECONDS SIDE…` (begin, in this order). Standard output has a line per turn that
has ended, `SIDE BEGIN END` in ns of CLOCK_MONOTONIC, and `denied SIDE` if a process may not be stopped.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time

JITTER = 0.1
"""Share by which a turn is shorter or longer, so that turns do not fall in step with what repeats (timers)."""


class _Turns:
    """The programs, and whose turn it is."""

    def __init__(self) -> None:
        self.groups: dict[int, list[int]] = {}
        self._stopped: set[int] = set()
        self._order: list[int] = []
        self._place = 0
        self._nanoseconds = 0
        self._began = 0
        self.due = 0
        """When the turn ends, in ns of CLOCK_MONOTONIC; 0 before the first."""

    def do(self, words: list[bytes]) -> None:
        """Carry out one command."""
        name, numbers = words[0], [int(word) for word in words[1:]]
        if name == b"groups":
            self.groups[numbers[0]] = numbers[1:]
            if numbers[0] in self._stopped:  # a group that has been found since
                self._send(numbers[0], signal.SIGSTOP)
        elif name == b"hold":
            self._stop(numbers[0])
        elif name == b"turns":
            self._nanoseconds, self._order = numbers[0], numbers[1:]
            for side in self._order[1:]:
                self._stop(side)
            self._begin()

    def change(self) -> None:
        """Stop the program whose turn ends, and let the next one run."""
        ended = time.monotonic_ns()
        side = self._order[self._place]
        self._stop(side)
        _write(f"{side} {self._began} {ended}\n")
        self._place = (self._place + 1) % len(self._order)
        self._begin()

    def _begin(self) -> None:
        self._continue(self._order[self._place])
        self._began = time.monotonic_ns()
        self.due = self._began + int(self._nanoseconds * random.uniform(1.0 - JITTER, 1.0 + JITTER))

    def _stop(self, side: int) -> None:
        self._stopped.add(side)
        self._send(side, signal.SIGSTOP)

    def _continue(self, side: int) -> None:
        self._stopped.discard(side)
        self._send(side, signal.SIGCONT)

    def _send(self, side: int, number: signal.Signals) -> None:
        for group in self.groups.get(side, ()):
            if _is_denied(group, number):
                _write(f"denied {side}\n")

    def continue_all(self) -> None:
        """Continue every program, whether it is stopped or not."""
        for side in self.groups:
            self._continue(side)


def _is_denied(group: int, number: signal.Signals) -> bool:
    """Send a signal to a process group, which may have ended; returns whether that is not allowed."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False


def _write(line: str) -> None:
    os.write(1, line.encode())


def main() -> None:
    """Take turns until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the bench ends the turns
    turns, rest = _Turns(), b""
    try:
        while True:
            wait = max(0, turns.due - time.monotonic_ns()) / 1e9 if turns.due else None
            if select.select([0], [], [], wait)[0]:
                data = os.read(0, select.PIPE_BUF)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    turns.do(line.split())
            elif turns.due:
                turns.change()
    except BrokenPipeError:  # the bench was killed
        sys.exit(0)
    finally:
        turns.continue_all()


if __name__ == "__main__":
    main()
