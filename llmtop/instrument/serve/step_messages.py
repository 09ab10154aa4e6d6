"""Messages from the ring: data that one monitor has not been sent yet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace

from llmtop.errors import UnusableInput
from llmtop.format import printable
from llmtop.instrument.guest import sanitize
from llmtop.instrument.steps.ring import FIELDS
from llmtop.protocol import wire

if TYPE_CHECKING:
    from llmtop.instrument.record.state import State
    from llmtop.system.wall_clock import WallClock

MESSAGE_STEPS = 128
"""Steps in one message. To make one takes some 90 µs, for which the server thread may hold the training's GIL;
sending it lets go. More and smaller messages are no better: this thread mostly has the GIL back before the
training has woken, so that a step waits for all of them."""
_PLAIN = 1e15
"""Numbers within go as they are."""
_DETAIL = 1000
_NOT_SENT = "messages that could not be encoded"
T = TypeVar("T")
_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, UnusableInput)
"""Errors of the encoder for a value that no message can hold, or for too large a message."""


MAX_PAUSES = 256
"""Stretches without a step that are remembered; the ring seldom holds steps from before so many."""
_MOST_SHARED = 64
"""Messages that are kept for the next monitor: of a round of sending that is all but a long history."""

StepArray = tuple[Any, ...]
"""A `wire.StepDone` as the array that it is in a message. To make one takes half as long as to make the struct."""


class NoStepStretch(NamedTuple):
    """A stretch in which no step was under way: at a breakpoint, between the cells of a notebook."""

    begun: int
    """When it was first seen, as perf_counter ns."""
    ended: int
    """When it was last seen."""


class Batch(NamedTuple):
    """Steps as they are sent."""

    first: int
    """The number of the first of them; those before it were lost."""
    length: int
    data: bytes
    """Empty: they cannot be encoded."""


class Shared:
    """Messages made in one round of sending, shared by all monitors that get the same ones."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Any] = {}

    def forget(self) -> None:
        """A round is over."""
        self._made.clear()

    def get(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return the value of `make`, computed once per round and key."""
        if key in self._made:
            found: T = self._made[key]
            return found
        made = make()
        if len(self._made) < _MOST_SHARED:
            self._made[key] = made
        return made


class StepReader:
    """Turns rows of the ring into what messages hold."""

    def __init__(self, recorder: State, wall_clock: WallClock | None = None) -> None:
        """Prepare.

        Args:
            recorder: whose steps are read.
            wall_clock: for a reader in another thread than the server's.
        """
        self._ring = recorder.ring
        self._recorder = recorder
        self._holds = recorder.holds
        self._names = recorder.paths.names
        self.pauses: deque[NoStepStretch] = deque(maxlen=MAX_PAUSES)
        """When the training was seen to stand still, oldest first; no interval goes across."""
        self._wall_clock = recorder.facts.wall_clock if wall_clock is None else wall_clock
        self.unix_offset_ns = 0
        """Offset with which the stamps of the steps last read were made unix time."""
        self._order: tuple[int, ...] = ()
        self._places: list[tuple[str, int]] = []

    def read(self, first: int, limit: int = MESSAGE_STEPS) -> tuple[int, list[StepArray]]:
        """Up to `limit` finished steps from number `first` on, and the number of the first of them."""
        start, rows = self._ring.read(first, limit)
        self.unix_offset_ns = offset = self._wall_clock.offset_ns()
        places = self._phases_in_order()
        tokens_in = self._recorder.tokens_in
        has_paused = bool(self.pauses) or self._holds.has_any
        steps: list[StepArray] = []
        for row in rows:
            index, begun, host_ns, interval, tokens, samples = row[:FIELDS]
            known = len(row)
            if has_paused and interval >= 0 and self._was_paused(begun - interval, begun):
                interval = -1
            steps.append(
                (
                    index,
                    begun + offset,
                    host_ns,
                    interval if interval >= 0 else None,
                    tokens if tokens is None or -_PLAIN < tokens < _PLAIN else _finite(tokens),
                    samples if samples is None or -_PLAIN < samples < _PLAIN else _finite(samples),
                    [(name, row[at], row[at + 1]) for name, at in places if at < known and row[at + 1]],
                    *((tokens_in.get(begun),) if tokens_in else ()),
                )
            )
        return start, steps

    def _phases_in_order(self) -> list[tuple[str, int]]:
        """Return the name of each phase, and where its nanoseconds stand in a row."""
        names, paths = self._names, self._recorder.paths
        order = paths.order
        if len(order) < len(names) - 1:  # a name is new, as far as known until a step has ended
            order = paths.arrange(self._recorder.root, self._ring.last_end())
        if order is not self._order:
            self._order, self._places = order, [(names[place], FIELDS + 2 * place) for place in order]
        return self._places

    def _was_paused(self, begun: int, ended: int) -> bool:
        return self._holds.overlap(begun, ended) or any(
            pause.begun < ended and pause.ended > begun for pause in self.pauses
        )


def _finite(count: float) -> float | None:
    number = sanitize.number(count)
    return number if number is not None and math.isfinite(number) else None


def message_of(steps: list[StepArray], **fields: Any) -> wire.Steps:
    """Return the message with these steps; `fields` are its others."""
    return wire.Steps(steps=cast(list[wire.StepDone], steps), **fields)


def encode_steps(message: wire.Steps) -> bytes:
    """Encode, in two halves when many phases make it too large for one frame."""
    try:
        return wire.encode(message)
    except UnusableInput:
        middle = len(message.steps) // 2
        if middle == 0:
            raise
        head, tail = message.steps[:middle], message.steps[middle:]
        first = replace(message, steps=head, logged=[])
        second = replace(message, steps=tail, first_ordinal=message.first_ordinal + middle)
        return encode_steps(first) + encode_steps(second)


def encoded(message: wire.FromTraining, note: Callable[[str], None]) -> bytes:
    """Return a message as bytes with its length in front. None, after a call of `note`, where it holds an
    invalid value."""
    try:
        return wire.encode(message)
    except _ERRORS:
        pass
    if isinstance(message, wire.CaptureState | wire.PauseState | wire.OpRangesState):
        message.detail = printable(message.detail[:_DETAIL])  # an error's own words, or a path's odd bytes
        try:
            return wire.encode(message)
        except _ERRORS:
            pass
    note(_NOT_SENT)
    return b""


def encoded_steps(message: wire.Steps, note: Callable[[str], None]) -> bytes:
    """Steps as bytes, without the metrics if those are at fault; `note` is called with what cannot be sent."""
    try:
        return encode_steps(message)
    except _ERRORS:
        note(_NOT_SENT)
    message.metrics, message.logged = {}, []
    try:
        return encode_steps(message)
    except _ERRORS:
        return b""
