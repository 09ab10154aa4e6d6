"""Captures that this process takes of itself at a monitor's request: torch.profiler, jax.profiler, memory.

Starting torch.profiler in any other thread than the one it shall record gives an empty trace, and stopping it in
another than it was started in ends the process with a segmentation fault. So the server thread only hangs a hook
on the step boundary; the training thread itself starts, steps and stops; and a thread of the capture's own, which
exists only then, writes the file. Any error is reported and ends the capture, never the training.

A training that ends, or whose training thread ends, takes its capture with it: see `ending`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Protocol

from llmtop.instrument.control import cupti
from llmtop.instrument.control.recording import Recording
from llmtop.instrument.control.recording_length import RecordingLength
from llmtop.instrument.control.recordings import RECORDINGS
from llmtop.instrument.guest import registry
from llmtop.instrument.guest.interrupts import raised_by_handler, remember_interrupt
from llmtop.instrument.guest.threads import Thread, wait_for
from llmtop.instrument.steps.ring import MASK
from llmtop.naming import file_names
from llmtop.protocol import wire

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Recorder

Send = Callable[[wire.CaptureState], None]


class Requester(Protocol):
    """The connection that a request came over."""

    @property
    def is_closed(self) -> bool:
        """Return True if it has ended."""


WRITE_SECONDS = 10.0
"""How long an exit waits for the file of a capture."""
_STEP_SECONDS = 2.0
"""How long an exit waits for the next step of another thread, which alone can stop what records it."""

_lock = threading.Lock()
_running: SelfCapture | None = None
_recorded = False
"""True if PyTorch's profiler has run here; then threads of its own wait in it for ever."""
_has_inherited_profiler = False
"""True if it had in the process that this one was forked from."""
_of_thread = threading.local()
"""Data that ends with its thread."""


def engines() -> list[str]:
    """Return the engines with which this process can record itself now. Imports nothing."""
    loaded = {name: sys.modules.get(kind.library) for name, kind in RECORDINGS.items()}
    found = {name: module for name, module in loaded.items() if module is not None}
    return [name for name, module in found.items() if RECORDINGS[name].is_available(module)]


def handle(
    request: wire.CaptureRequest | wire.CaptureCancel,
    recorder: Recorder,
    send: Send,
    asker: Requester | None = None,
) -> None:
    """Handle a monitor's request; called in the server thread, returns at once.

    Args:
        request: begin, or cancel.
        recorder: whose steps are recorded.
        send: reports states to the monitor; called from a thread of the capture's own.
        asker: connection of the monitor: a capture from a certain step on ends when it closes. None: no one can
            disconnect.
    """
    global _running
    with _lock:
        running = _running if _running is not None and not _running.ended.is_set() else None
        if isinstance(request, wire.CaptureCancel):
            if running is not None and running.request.id == request.id:
                running.cancel()
            return
        if running is not None:
            detail = (
                f"a capture with {running.request.engine} is running in this process: wait for it, or cancel it"
            )
            send(wire.CaptureState(id=request.id, state="failed", detail=detail))
            return
        _running = SelfCapture(request, recorder, send, asker)
        _running.arm()


def end_with_process(seconds: float) -> bool:
    """The process ends: so does the capture.

    Args:
        seconds: how long a file that is being written may take.

    Returns:
        Whether nothing of it, nor of an earlier one, is inside PyTorch any more.
    """
    running = _running
    ended = running is None or running.ended.is_set() or running.end_with_process(seconds)
    if not _recorded:
        return ended
    has_left = cupti.has_left(sys.modules["torch"])
    remember_interrupt()
    return ended and has_left


def has_inherited_profiler() -> bool:
    """Return True if this process was forked from one in which PyTorch's profiler had run."""
    return _has_inherited_profiler


def forget_after_fork() -> None:
    """In a forked child: drop the capture, which is the parent's, as is the thread that holds the lock."""
    global _has_inherited_profiler, _lock, _recorded, _running
    _has_inherited_profiler = _has_inherited_profiler or _recorded
    _recorded = False
    _running = None
    _lock = threading.Lock()


class SelfCapture:
    """One capture, from the request to the file."""

    def __init__(
        self, request: wire.CaptureRequest, recorder: Recorder, send: Send, asker: Requester | None = None
    ) -> None:
        """Prepare; `arm()` checks the request and hangs the capture on the next step boundary.

        Args:
            request: engine, options, window and `path`, which gets the file; it is written as `path` + ".part"
                first.
            recorder: whose steps are counted.
            send: reports each state; called from any thread of the training.
            asker: the monitor. A window by the clock or at a later step is cancelled when its connection closes;
                one of a few steps is finished anyway. None: no one can disconnect.
        """
        self.request = request
        # A capture of a few steps is finished without its monitor; one of ten minutes is not.
        waits_long = request.at_step is not None or request.seconds is not None
        self._asker = asker if waits_long else None
        self.ended = threading.Event()
        """Set when the last state has been sent."""
        self._ending = threading.Lock()
        """Taken by the thread that ends it first."""
        self._recorder = recorder
        self._send = send
        self._length = RecordingLength(request)
        self._recording: Recording | None = None
        self._thread = 0
        self._boundaries = 0
        self._first: int | None = None
        self._last: int | None = None
        self._cancelled = False
        self._process_ends = False
        self._pid = os.getpid()
        self._writing = False
        self._partial = request.path + file_names.PARTIAL

    def arm(self) -> None:
        """Hang the hook on the step boundary and report "armed"."""
        refusal = self._refusal()
        if refusal:
            self._end("failed", refusal)
            return
        self._send_state("armed")
        self._recorder.boundary_hook = self._at_boundary

    def cancel(self) -> None:
        """Call it off: at once while nothing has begun, else at the next boundary."""
        self._cancelled = True
        if self._recording is None and self._recorder.boundary_hook == self._at_boundary:
            self._unhook("cancelled", "")

    def end_with_process(self, seconds: float) -> bool:
        """End the capture at exit; for the main thread.

        Args:
            seconds: the longest wait for a file that is being written; what is incomplete then is deleted.

        Returns:
            True if no thread is inside PyTorch's profiler any more.
        """
        self._process_ends = True
        if self._writing:
            if wait_for(self.ended, seconds):
                return True
            self._end("failed", f"the training ended, and its file was not written within {seconds:.0f} s")
            with suppress(OSError):
                os.unlink(self._partial)
            return False
        recording = self._recording
        if recording is not None and get_ident() != self._thread:
            return wait_for(self.ended, _STEP_SECONDS)  # which the next boundary of that thread sets
        self._abandon(f"the training ended{self._length.so_far()}")
        return True

    def thread_ends(self) -> None:
        """Run in the training thread when that ends before the process."""
        # A forked child has the same thread, and nothing to end: the capture is its parent's.
        mine = os.getpid() == self._pid and get_ident() == self._thread
        if mine and not self._writing and not self.ended.is_set():
            self._abandon(f"the thread that trains ended{self._length.so_far()}")

    def _abandon(self, reason: str) -> None:
        if self._recording is not None:
            with suppress(Exception):  # whatever PyTorch raises now, the process ends
                self._recording.abandon()
        self._unhook(*(("cancelled", "") if self._cancelled else ("failed", reason)))

    def _refusal(self) -> str:
        """Return why it cannot be done; in the server thread."""
        if self.request.engine not in engines():
            return f"{self.request.engine} is not offered by this process"
        if self._recorder.op_ranges is not None:
            return "its operators are being marked for nsys: try again"
        if self._recorder.boundary_hook is not None:
            return "the training is being paused for another capture: try again"
        if not os.path.isabs(self.request.path):
            return "the path is not absolute"
        return self._passed_already() or RECORDINGS[self.request.engine].refusal()

    def _passed_already(self) -> str:
        """Return why the requested step cannot be the first one, judged by the steps that have ended."""
        if self.request.at_step is None or not self._recorder.ring.count:
            return ""
        ring = self._recorder.ring
        return self._passed_step_text(int(ring.rows[(ring.count - 1) & MASK][0]))

    def _first_if_begun(self, index: int) -> int:
        """Return which step would be the first if it began after step `index`; scripts may count by tens."""
        ring = self._recorder.ring
        before = ring.rows[(ring.count - 2) & MASK] if ring.count > 1 else ()
        by = max(1, index - int(before[0])) if before else 1
        return index + by * (1 + RECORDINGS[self.request.engine].warmup)

    def _passed_step_text(self, index: int) -> str:
        """Return why the step that was asked for cannot be the first any more, once step `index` has ended."""
        at = self.request.at_step
        if at is None:
            return ""
        first = self._first_if_begun(index)
        if first <= at:
            return ""
        return f"step {at} has passed: step {index} has ended, and {first} is the first that could be recorded"

    def _must_wait(self, index: int) -> bool:
        """Return True if the step that was asked for is still ahead."""
        at = self.request.at_step
        return at is not None and self._first_if_begun(index) < at

    def _at_boundary(self, index: int) -> None:
        """Run in the training thread after a step has ended."""
        try:
            self._advance(index)
        except Exception as error:  # whatever PyTorch raises, the training goes on
            if raised_by_handler(error):
                self._give_up("a signal interrupted it")
                raise
            self._give_up(f"{type(error).__name__}: {error}")

    def _advance(self, index: int) -> None:
        if self._asker is not None and self._asker.is_closed:
            self._cancelled = True
        if self._recording is None:
            self._start(index)
            return
        if get_ident() != self._thread:
            return  # the steps of another thread are none of this capture's
        self._boundaries += 1
        if self._process_ends:
            self._abandon(f"the training ended{self._length.so_far()}")
        elif self._cancelled:
            self._hold()
            self._recording.stop()
            self._unhook("cancelled", "")
        elif self._boundaries < 1 or not self._length.is_full(self._boundaries, self._recording):
            self._recording.step()
            self._began(index)
            if self._boundaries > 0:
                self._last = index
                self._send_state("recording")
        else:
            self._length.end()
            self._hold()
            self._recording.stop()
            self._last = index
            self._recorder.boundary_hook = None
            self._send_state("writing")
            self._writing = True
            Thread(self._write, "llmtop-capture").start()

    def _start(self, index: int) -> None:
        """Begin, unless that is called off, or it is not time yet."""
        global _recorded
        if self._cancelled:
            self._unhook("cancelled", "")
            return
        if self._must_wait(index):
            return
        passed = self._passed_step_text(index)
        if passed:
            self._unhook("failed", passed)
            return
        self._thread = get_ident()
        recording = RECORDINGS[self.request.engine](self._recorder, self._length.most_steps, self.request.options)
        _recorded = _recorded or recording.leaves_threads
        _of_thread.capture = _EndOfThread(self)
        self._recording = recording
        self._hold()
        recording.start()
        self._boundaries = -recording.warmup
        if self._cancelled:  # while it started
            recording.stop()
            self._unhook("cancelled", "")
        else:
            self._began(index)

    def _hold(self) -> None:
        """Note that steps are longer from now on, until it records steps or has ended."""
        self._recorder.holds.begin(self.request.engine)

    def _began(self, index: int) -> None:
        if self._boundaries == 0:
            self._recorder.holds.end()
            at = self.request.at_step
            self._first = index + 1 if at is None else at
            self._length.begin()
            self._send_state("recording")

    def _give_up(self, reason: str) -> None:
        self._writing = False
        if self._recording is not None:
            with suppress(Exception):  # it may be the stop that has just failed
                self._recording.stop()
        self._unhook("failed", reason)

    def _unhook(self, state: str, detail: str) -> None:
        if self._recorder.boundary_hook == self._at_boundary:
            self._recorder.boundary_hook = None
        self._end(state, detail)

    def _end(self, state: str, detail: str) -> None:
        if self._ending.acquire(blocking=False):
            self._recording = None
            self._recorder.holds.end()
            self._send_state(state, detail)
            self.ended.set()

    def _write(self) -> None:
        """Run in the capture's own thread."""
        recording = self._recording
        try:
            if recording is None:
                raise RuntimeError("nothing was recorded")
            recording.write(self._partial)
            os.replace(self._partial, self.request.path)
        except Exception as error:  # noqa: BLE001 - a full disk, a folder that has gone, anything of PyTorch's
            with suppress(OSError):
                os.unlink(self._partial)
            self._end("failed", f"{self.request.path} could not be written ({error}); nothing was kept")
        else:
            self._end("done", "")

    def _send_state(self, state: str, detail: str = "") -> None:
        message = wire.CaptureState(
            id=self.request.id,
            state=state,
            detail=detail,
            path=self.request.path if state == "done" else "",
            first_step=self._first,
            last_step=self._last if state != "armed" else None,
            ended=self._process_ends,
            seconds=self._length.seconds,
            stopped_early=self._length.stopped_early,
        )
        with suppress(Exception):  # the monitor has gone: the capture is finished all the same
            self._send(message)


class _EndOfThread:
    """Held by a thread's own storage, which Python empties in that thread when it ends."""

    def __init__(self, capture: SelfCapture) -> None:
        self._capture = capture

    def __del__(self) -> None:
        self._capture.thread_ends()


registry.at_fork("capture", lambda _recorder: forget_after_fork())
registry.at_end("inherited", lambda _recorder: not has_inherited_profiler())
registry.at_end("capture", lambda _recorder: end_with_process(WRITE_SECONDS))
