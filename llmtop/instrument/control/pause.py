"""A pause of the training at a step boundary, with its GPU idle, for as long as a monitor asks.

It is for tools that harm a process when they start or stop recording while kernels are in flight
(llmtop/capture/nsys/pause.py lists them). The training thread itself waits, after a step: until the monitor lets
it go, the time is over, or the monitor has gone. Whatever goes wrong ends the pause, never the training. Only what
PyTorch has launched is waited for.

All pauses together are a small share of the run (`limits.PauseBudget`); `LLMTOP_PAUSE_PCT` in the training's
environment sets another one.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from llmtop.instrument.guest import registry
from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.instrument.guest.threads import Thread, wait_for
from llmtop.instrument.serve import limits
from llmtop.protocol import wire

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Recorder

MAX_SECONDS = 10.0
"""Whatever a monitor asks for; as much again for the GPU to become idle."""
GRACE_SECONDS = 1.0
"""A monitor that was killed may have left a tool at work that takes a moment."""
DRAIN_SECONDS = 1.0
"""How long an exit waits for a thread that waits for the GPU."""
_POLL_SECONDS = 0.05
_ENGINE = "nsys"
"""The engine for which trainings are paused."""
_waiter: Thread | None = None
"""The latest thread that waits, or has waited, for the GPU."""

Send = Callable[[wire.PauseState], None]

_budget = limits.PauseBudget()


class _PauseRequester(Protocol):
    @property
    def is_closed(self) -> bool: ...


def handle(request: wire.Pause | wire.Resume, recorder: Recorder, send: Send, asker: _PauseRequester) -> None:
    """Handle a monitor's request; called in the server thread, returns at once.

    Args:
        request: pause, or go on.
        recorder: whose steps end.
        send: reports states to the monitors; called from the training thread too.
        asker: connection of the monitor: when it closes, the pause ends.
    """
    known = recorder.pause.request  # read once: the training thread takes it away when it is over
    known = known if isinstance(known, PauseUnderWay) else None
    running = known if known is not None and not known.is_over else None
    if isinstance(request, wire.Resume):
        if running is not None and running.request.id == request.id:
            running.resume()
        return
    refusal = ""
    if running is not None:
        refusal = "another llmtop is pausing it"
    elif recorder.tracks is not None:
        refusal = "its steps overlap, so that there is no moment between them"
    elif known is None and recorder.boundary_hook is not None:
        refusal = "a capture runs inside it"
    else:
        refusal = _budget.refusal()
    if refusal:
        send(wire.PauseState(id=request.id, state="failed", detail=refusal))
        return
    if known is not None:
        known.resume()  # whose monitor has gone: if it still waits, the next one follows a step later
    pause = recorder.pause.request = PauseUnderWay(request, recorder, send, asker)
    pause.arm()


def end_with_process(seconds: float) -> bool:
    """Wait for the thread that waits for the GPU; called when the process exits.

    Args:
        seconds: the longest wait.

    Returns:
        True if no such thread runs any more; else exit could tear PyTorch down under it.
    """
    return _waiter is None or _waiter.join(seconds)


class PauseUnderWay:
    """One pause, from the request to the step that goes on."""

    def __init__(self, request: wire.Pause, recorder: Recorder, send: Send, asker: _PauseRequester) -> None:
        """Prepare; `arm()` hangs the pause on the next step boundary.

        Args:
            request: how many steps are to be finished first, and how long the pause may last.
            recorder: whose step boundary is the place of the pause.
            send: reports each state; called from the server thread and the training thread.
            asker: the monitor; the training goes on when its connection is closed.
        """
        self.request = request
        self._recorder = recorder
        self._send = send
        self._asker = asker
        self._ended = False
        self._holding = False
        self._released = threading.Event()

    @property
    def is_over(self) -> bool:
        """Return True if it has ended, or its monitor has gone."""
        return self._ended or self._released.is_set() or self._asker.is_closed

    def arm(self) -> None:
        """Hang the hook on the step boundary and report "armed"."""
        self._send_state("armed")
        self._recorder.boundary_hook = self._at_boundary

    def resume(self) -> None:
        """Resume the training, or withdraw a pause that has not begun; from the server thread."""
        if self._asker.is_closed and self._holding:
            return  # it is in its grace
        self._released.set()
        if not self._holding:
            self._end("resumed")

    def _at_boundary(self, index: int) -> None:
        """Run in the training thread after a step has ended; `index` is the script's own count of it."""
        if self._holding:
            return  # another thread runs steps while the one that waits has none open
        finished, wanted = self._recorder.ring.count, self.request.finished
        if self.is_over:
            self._end("resumed")
        elif wanted is not None and finished > wanted:
            self._end("late", f"step {index} had ended before")
        elif wanted is None or finished == wanted:
            self._holding = self._recorder.pause.holds = True
            try:
                self._hold(index)
                self._recorder.pause.holds = False
            finally:
                # A signal's handler that raises ends the pause; what it raised is the script's.
                self._end("failed", "the training was interrupted")

    def _hold(self, index: int) -> None:
        began = time.monotonic_ns()
        try:
            failed, why = self._wait(index)
        finally:
            ended = time.monotonic_ns()
            took = ended - began
            _budget.spend(took / 1e9)
            self._recorder.holds.add(_ENGINE, began, ended)
        self._end("failed" if failed else "resumed", why if failed else "", took)

    def _wait(self, index: int) -> tuple[bool, str]:
        """Stand still for as long as is asked for; returns whether the GPU has kept it from that, and how."""
        busy = self._drain(index)
        if not busy and not self.is_over:
            self._send_state("paused")
            until = time.monotonic() + _limit(self.request.seconds)
            while not wait_for(self._released, _POLL_SECONDS) and time.monotonic() < until:
                if self._asker.is_closed:
                    wait_for(self._released, GRACE_SECONDS)
                    break
        return bool(busy) and not self.is_over, busy

    def _drain(self, index: int) -> str:
        """Wait until the GPUs have done what this process has launched; returns why they have not.

        In a thread, because such a wait has no limit of its own: the GPU may be at a collective for which another
        rank is missing. A thread that is left waiting does no harm, and is waited for at the end of the process.
        """
        done, errors = threading.Event(), list[str]()
        try:
            devices = _devices()
            if devices:
                global _waiter
                _waiter = Thread(functools.partial(_synchronize, devices, done, errors), "llmtop-pause")
                _waiter.start()
            else:
                done.set()
        except (AttributeError, RuntimeError) as error:  # PyTorch's, or no thread to be had
            if raised_by_handler(error):
                raise
            return f"{type(error).__name__}: {error}"
        limit = _limit(self.request.drain_seconds)
        until = time.monotonic() + limit
        while not wait_for(done, _POLL_SECONDS) and not self.is_over:
            if time.monotonic() > until:
                return f"the GPU was still at work {limit:.0f} s after step {index}"
        return errors[0] if errors else ""

    def _end(self, state: str, detail: str = "", paused_ns: int | None = None) -> None:
        # First what must not stay, should a signal's handler raise in between.
        if self._recorder.boundary_hook == self._at_boundary:
            self._recorder.boundary_hook = None
        if self._recorder.pause.request is self:
            self._recorder.pause.request = None
        if self._ended:
            return
        self._ended = True
        self._send_state(state, detail, paused_ns)

    def _send_state(self, state: str, detail: str = "", paused_ns: int | None = None) -> None:
        self._send(
            wire.PauseState(
                id=self.request.id,
                state=state,
                detail=detail,
                finished=self._recorder.ring.count,
                paused_ns=paused_ns,
            )
        )


def _limit(seconds: float) -> float:
    """Return the requested seconds within bounds; 0 if it is no number."""
    return max(0.0, min(seconds, MAX_SECONDS))


def _devices() -> list[int]:
    """Return the GPUs on which PyTorch has a context here: to wait for another one would make one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured across the end of the step")
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None:
        return [torch.cuda.current_device()]
    return [device for device in range(torch.cuda.device_count()) if has_context(device)]


def _synchronize(devices: list[int], done: threading.Event, errors: list[str]) -> None:
    torch: Any = sys.modules["torch"]
    try:
        for device in devices:
            torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 - of the device: the script will meet it itself
        errors.append(f"{type(error).__name__}: {error}")
    finally:
        done.set()


registry.at_end("pause", lambda _recorder: end_with_process(DRAIN_SECONDS))
