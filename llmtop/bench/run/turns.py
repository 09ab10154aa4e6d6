"""The turns of programs that run at the same time, seen from the bench: who runs when."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from llmtop.bench.run.command_process import CommandProcess
from llmtop.bench.run.stderr_relay import READ_BYTES

SHORTEST_SECONDS = 0.06
"""Turns of 20 steps of 3 ms: on two virtual CPUs the ratio of two equal loops then varies by 0.3 %, with turns of
0.15 s by 1.1 %, with turns of 0.6 s by 4.1 % (docs/measurements.md)."""
STEPS_PER_TURN = 8
"""A pause touches the first and the last step, and the second is left out: five or more remain."""
GPU_SHORTEST_SECONDS = 1.0
GPU_STEPS_PER_TURN = 20
"""With a GPU the first quarter of a turn is left out (`settling_seconds`): 14 steps remain."""
_SETTLING_SHARE = 0.25
_END_SECONDS = 2.0
_TAKER = Path(__file__).with_name("turn_taker.py")


class Turn(NamedTuple):
    """One turn of one program, by CLOCK_MONOTONIC in seconds."""

    round: int
    """Number of the round, in which each program has one turn."""
    began: float
    ended: float


def turn_seconds(step_seconds: float, *, has_gpu: bool) -> float:
    """Return the length of a turn.

    Args:
        step_seconds: usual step time of the slowest program, seconds.
        has_gpu: whether any of the programs uses a GPU.
    """
    shortest, steps = (GPU_SHORTEST_SECONDS, GPU_STEPS_PER_TURN) if has_gpu else (SHORTEST_SECONDS, STEPS_PER_TURN)
    return max(shortest, steps * step_seconds)


def settling_seconds(turn: float, *, has_gpu: bool) -> float:
    """Return how long after its begin a turn counts no step.

    A stopped host leaves kernels in the queue of its GPU: they delay the other program, and that program's own
    host fills its empty queue without a wait. Steps on the CPU leave no such work.

    Args:
        turn: its length, seconds.
        has_gpu: whether any of the programs uses a GPU.
    """
    return _SETTLING_SHARE * turn if has_gpu else 0.0


class TurnTaker:
    """Process that stops and continues the programs (turn_taker.py)."""

    def __init__(self, commands: Sequence[CommandProcess]) -> None:
        self._commands = tuple(commands)
        self._groups: list[list[int]] = [[] for _ in commands]
        self.turns: list[list[Turn]] = [[] for _ in commands]
        """Turns of each program that have ended, oldest first."""
        self.denied: set[int] = set()
        """Programs of which a process may not be stopped."""
        self._rest = b""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_TAKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.update_groups()

    @property
    def pid(self) -> int:
        """Return the pid of that process."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Return True if the process has ended, as after a kill: nothing stops the programs any more."""
        return self._process.poll() is not None

    def update_groups(self) -> None:
        """Find the process groups of each program: a launcher may start each rank in a session of its own."""
        for side, command in enumerate(self._commands):
            groups = command.process_groups()
            if groups != self._groups[side]:
                self._groups[side] = groups
                self._write(f"groups {side} {' '.join(map(str, groups))}")

    def hold(self, side: int) -> None:
        """Stop one program until the turns begin."""
        self._write(f"hold {side}")

    def begin(self, seconds: float, order: Sequence[int]) -> None:
        """Begin the turns.

        Args:
            seconds: length of a turn.
            order: all programs, by number; the first one runs first in every round.
        """
        self._write(f"turns {int(seconds * 1e9)} {' '.join(map(str, order))}")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; `has_ended` reports that
            os.write(self._process.stdin.fileno(), line.encode() + b"\n")

    def read(self) -> None:
        """Take in the turns that have ended since."""
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._process.stdout.fileno(), READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take(line.split())

    def _take(self, words: list[bytes]) -> None:
        if words[0] == b"denied":
            self.denied.add(int(words[1]))
            return
        side, began, ended = (int(word) for word in words)
        found = self.turns[side]
        found.append(Turn(len(found), began / 1e9, ended / 1e9))

    def close(self) -> None:
        """End the turns, and continue every program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.stdin.closed:
            return
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_SECONDS)
        self.read()
        self._process.stdout.close()
        for command in self._commands:  # also where that process was killed
            for group in command.process_groups():
                with contextlib.suppress(OSError):
                    os.killpg(group, signal.SIGCONT)
