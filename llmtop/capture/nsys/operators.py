"""Attached trainings whose operators PyTorch marks as NVTX ranges while nsys records (`wire.OpRanges`).

A training ends it by itself when this process hangs up, so one that is killed leaves nothing marked.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from llmtop.capture.base.job import Target
from llmtop.capture.nsys.pause import STEPS_KEPT, Sleep, median_step_seconds, patience_seconds
from llmtop.errors import LlmtopError, NotPossibleHere
from llmtop.model.setting_ranges import MAX_CAPTURE_SECONDS
from llmtop.protocol import client, wire

LONGEST_SECONDS = MAX_CAPTURE_SECONDS + 60.0
"""The longest window, and a minute for its end."""
_POLL = 0.01


@dataclass
class _MarkedTraining:
    """One training."""

    target: Target
    connection: client.Connection
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = ""
    """Last state of its operator ranges."""
    detail: str = ""
    steps: deque[wire.StepDone] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))

    def send(self, want: str) -> None:
        with suppress(client.ConnectionClosed, LlmtopError):  # the next read finds it gone
            self.connection.send(wire.OpRanges(id=self.id, want=want, seconds=LONGEST_SECONDS))

    def read(self) -> None:
        if self.state == "gone":
            return
        try:
            for message in self.connection.receive(0.0):
                if isinstance(message, wire.Steps):
                    self.steps.extend(message.steps)
                elif isinstance(message, wire.OpRangesState) and message.id == self.id:
                    self.state, self.detail = message.state, message.detail
        except (LlmtopError, client.ConnectionClosed, OSError, ValueError):
            self.state, self.detail = "gone", "it disconnected"


class OperatorMarking:
    """The trainings of a capture whose operators are marked. Empty where that was not requested."""

    def __init__(self, targets: Iterable[Target]) -> None:
        """Connect to them.

        Raises:
            NotPossibleHere: one is not attached, or cannot mark operators.
        """
        self.notes: list[str] = []
        """Notes on what the marks will not show."""
        self._members: list[_MarkedTraining] = []
        try:
            for target in targets:
                self._members.append(_connect(target))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._members)

    def __enter__(self) -> OperatorMarking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, upon which all of it ends."""
        for member in self._members:
            member.connection.close()
        self._members.clear()

    def await_support(self, sleep: Sleep) -> None:
        """Wait until each training has reported if its operators can be marked.

        Raises:
            NotPossibleHere: not of one of them.
        """
        self._send("ready")
        self._await("ready", sleep)
        self.notes = [f"{m.target.name}: {m.detail}" for m in self._members if m.detail]

    def begin(self) -> None:
        """Start the marking of operators at the end of the present step."""
        self._send("on")

    def await_begin(self, sleep: Sleep) -> None:
        """Wait until all are.

        Raises:
            NotPossibleHere: one of them is not.
        """
        self._await("on", sleep)

    def listen(self) -> bool:
        """Take what has come, or they stop telling; always False: it ends no window."""
        for member in self._members:
            member.read()
        return False

    def end_soon(self) -> None:
        """Request the end of the marking after the present step; does not wait."""
        self._send("off")

    def end(self, sleep: Sleep) -> list[str]:
        """End the marking and wait until it has ended; returns notes."""
        self.end_soon()
        try:
            self._await("off", sleep)
        except NotPossibleHere as refusal:
            return [f"nsys was stopped while operators were still marked: {refusal}"]
        return []

    def _send(self, want: str) -> None:
        for member in self._members:
            member.send(want)

    def _await(self, state: str, sleep: Sleep) -> None:
        paces = [median_step_seconds(member.steps) for member in self._members]
        patience = patience_seconds(max(paces, default=0.0))
        deadline = time.monotonic() + patience
        while True:
            self.listen()
            for member in self._members:
                if state == "off" and member.state in ("failed", "gone"):
                    continue  # whatever it was, it has ended
                if member.state in ("failed", "gone", "off") and member.state != state:
                    raise NotPossibleHere(
                        f"ops: {member.target.name} cannot mark operators: "
                        f"{member.detail or 'the process has ended'}"
                    )
            late = [m.target.name for m in self._members if m.state not in (state, "failed", "gone")]
            if not late:
                return
            if time.monotonic() > deadline:
                what = "answer" if state == "ready" else "end a step"
                raise NotPossibleHere(f"ops: {', '.join(late)} did not {what} within {patience:.0f} s")
            sleep(_POLL)


def _connect(target: Target) -> _MarkedTraining:
    hello = target.hello
    if hello is None or target.socket is None:
        raise NotPossibleHere(
            f"ops: {target.name} is not attached, and only a training itself can mark its operators: start it "
            "with llmtop run --nsys, or remove --option ops"
        )
    if not hello.op_ranges:
        why = "has loaded no PyTorch that can" if hello.torch else "has not loaded PyTorch, which alone can"
        raise NotPossibleHere(f"ops: {target.name} {why} mark operators: remove --option ops")
    try:
        return _MarkedTraining(target, client.Connection.open(target.socket, history=STEPS_KEPT))
    except (LlmtopError, client.ConnectionClosed) as error:
        raise NotPossibleHere(f"ops: {target.name} does not reply ({error})") from None
