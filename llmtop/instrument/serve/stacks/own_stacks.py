"""The Python stacks of this process's own threads, for a monitor that cannot read them from outside.

py-spy does that from outside, at no cost here, and is tried first; it does not know every version of Python, and
not every system lets one process read another. Here a thread that exists only during a request samples all others.
A sample takes Python's lock for some 10 µs per thread, so there are `MAX_RATE_HZ` at most.

No frame is kept after a sample: it would keep alive all that its function holds, tensors too. What is kept is the
code and how far in it the frame was; lines are found out at the end.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final

from llmtop.format import printable
from llmtop.instrument.guest import guard, registry
from llmtop.instrument.guest.threads import Thread, wait_for
from llmtop.instrument.serve.stacks.stack_words import MAX_FRAMES
from llmtop.model.setting_ranges import MAX_CAPTURE_SECONDS
from llmtop.protocol import wire

MAX_RATE_HZ: Final = 50.0
MAX_THREADS: Final = 256
"""Most threads in one sample, beside the main thread."""
MAX_STACKS: Final = 4000
"""Different ones that are remembered; others are counted."""
_MAX_NAME: Final = 120
_MAX_FILE: Final = 300
_LARGEST: Final = wire.MAX_FRAME // 2
_END_SECONDS: Final = 0.5

Tell = Callable[[wire.SampledStacks], None]
_Place = tuple[CodeType, int]
"""A function, and how far in it: the instruction."""

_lock = threading.Lock()
_running: OwnStackSampling | None = None


def handle(message: wire.SampleStacks | wire.StopSampling, tell: Tell, gone: Callable[[], bool]) -> None:
    """Handle a monitor's request; called in the server thread, returns at once.

    Args:
        message: begin to sample, or send the samples now.
        tell: sends the reply to that monitor; from any thread.
        gone: returns True once the monitor has disconnected.
    """
    global _running
    with _lock:
        running = _running if _running is not None and _running.goes_on() else None
        if isinstance(message, wire.StopSampling):
            if running is not None and running.id == message.id:
                running.enough.set()
            return
        if running is not None:
            refused = "its stacks are being looked at for another monitor: try again in a moment"
            tell(wire.SampledStacks(id=message.id, refused=refused))
            return
        _running = OwnStackSampling(message, tell, gone)
        _running.begin()


def end_with_process() -> None:
    """End the sampling under way; called when the process exits."""
    running = _running
    if running is not None and running.goes_on():
        running.enough.set()
        wait_for(running.ended, _END_SECONDS)


class OwnStackSampling:
    """One request, from the first sample to the reply."""

    def __init__(self, message: wire.SampleStacks, tell: Tell, gone: Callable[[], bool]) -> None:
        self.id = message.id
        self.enough = threading.Event()
        self.ended = threading.Event()
        seconds = message.seconds
        self._seconds = min(seconds, MAX_CAPTURE_SECONDS) if seconds > 0 else 0.0
        self._every = 1.0 / min(max(message.rate_hz, 1.0), MAX_RATE_HZ)
        self._tell = tell
        self._gone = gone
        self._pid = os.getpid()

    def goes_on(self) -> bool:
        """Return True if it is under way, and in this process rather than the one that this was forked from."""
        return not self.ended.is_set() and self._pid == os.getpid()

    def begin(self) -> None:
        """Sample once in this thread, or for a while in a thread of its own."""
        if not self._seconds:
            self._run()
            return
        try:
            Thread(self._run, "llmtop-stacks").start()
        except RuntimeError as error:
            self.ended.set()
            self._tell(wire.SampledStacks(id=self.id, refused=f"there is no thread to be had ({error})"))

    def _run(self) -> None:
        try:
            seen = StackSamples()
            self._sample_until_due(seen)
            answer = seen.to_message(self.id)
        except Exception as error:  # noqa: BLE001 - what goes wrong is noted, and the training goes on
            guard.report_internal_error("the stacks of its threads", error)
            answer = wire.SampledStacks(id=self.id, refused=f"{type(error).__name__}: {error}"[:_MAX_FILE])
        finally:
            self.ended.set()
        if not self._gone():
            self._tell(answer)

    def _sample_until_due(self, seen: StackSamples) -> None:
        nothing = select.poll()
        now = time.monotonic()
        until = now + self._seconds
        while True:
            seen.sample()
            if now >= until:
                return
            # At odd distances, else steps of that length would be seen at one place only.
            due = now + self._every * (0.75 + time.perf_counter_ns() % 1000 / 2000)
            nothing.poll(1000 * max(0.0, min(due, until) - time.monotonic()))
            now = time.monotonic()
            if self.enough.is_set() or self._gone():
                return


class StackSamples:
    """Counted stacks of some samples."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, tuple[_Place, ...]], int] = {}
        self._samples = 0
        self._cut = 0

    def sample(self) -> None:
        """Sample all threads but the calling one."""
        self._samples += 1
        mine, main, number = threading.get_ident(), threading.main_thread().ident, 0
        # Never the whole dictionary in a variable: it has this very frame too, and would keep itself alive.
        for thread, innermost in sys._current_frames().items():
            if thread == mine:
                continue
            number += 1
            if number > MAX_THREADS and thread != main:
                self._cut += 1
                continue
            frame: FrameType | None = innermost
            places: list[_Place] = []
            while frame is not None and len(places) < MAX_FRAMES:
                places.append((frame.f_code, frame.f_lasti))
                frame = frame.f_back
            del frame
            key = thread, tuple(places)
            if key in self._stacks or len(self._stacks) < MAX_STACKS:
                self._stacks[key] = self._stacks.get(key, 0) + 1
            else:
                self._cut += 1
        innermost = None  # type: ignore[assignment]

    def to_message(self, request: str) -> wire.SampledStacks:
        """Return all of it as a message that fits into a frame; the rarest stacks are left out first."""
        most = sorted(self._stacks.items(), key=lambda item: -item[1])
        while True:
            message = self._message(request, most)
            if len(most) <= 1 or len(wire.encode(message)) <= _LARGEST:
                return message
            self._cut += sum(looks for _, looks in most[len(most) // 2 :])
            most = most[: len(most) // 2]

    def _message(
        self, request: str, stacks: list[tuple[tuple[int, tuple[_Place, ...]], int]]
    ) -> wire.SampledStacks:
        frames: dict[_Place, int] = {}
        threads: dict[int, int] = {}
        to_message = [
            wire.SampledStack(
                thread=threads.setdefault(thread, len(threads)),
                frames=[frames.setdefault(place, len(frames)) for place in reversed(places)],
                looks=looks,
            )
            for (thread, places), looks in stacks
        ]
        return wire.SampledStacks(
            id=request,
            looks=self._samples,
            frames=[sampled_frame(*place) for place in frames],
            threads=sampled_threads(list(threads)),
            stacks=to_message,
            cut=self._cut,
        )


def sampled_frame(code: CodeType, instruction: int) -> wire.SampledFrame:
    """Return a frame with its line, which is found out only now."""
    name = getattr(code, "co_qualname", code.co_name)
    line = next((line for start, end, line in code.co_lines() if start <= max(instruction, 0) < end), None)
    return wire.SampledFrame(printable(name, _MAX_NAME), printable(code.co_filename, _MAX_FILE), line or 0)


def sampled_threads(idents: list[int]) -> list[wire.SampledThread]:
    """Return Python's data on these threads. Threads that Python did not start have neither name nor number."""
    known = {thread.ident: thread for thread in list(getattr(threading, "_active", {}).values())}
    found = []
    for ident in idents:
        thread = known.get(ident)
        name, number = getattr(thread, "name", ""), getattr(thread, "native_id", None)
        found.append(
            wire.SampledThread(
                printable(name, _MAX_NAME) if type(name) is str else "", number if type(number) is int else None
            )
        )
    return found


registry.at_end("stacks", lambda _recorder: end_with_process())
