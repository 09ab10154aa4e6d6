"""A pause of the training at a step boundary, with its GPU idle, for as long as a monitor asks.

It is for tools that harm a process when they start or stop recording while kernels are in flight
(llmtop/capture/pausing.py says which). The training thread itself waits, after a step: until the monitor lets it
go, the time is over, or the monitor has gone. Whatever goes wrong ends the pause, never the training.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from llmtop import wire

if TYPE_CHECKING:
    from llmtop.publish.recorder import Recorder

MAX_SECONDS = 30.0
"""Whatever a monitor asks for."""
DRAIN_SECONDS = 3.0
"""How long the GPU may take for what the step has launched. It may be more than can ever be done: a collective
for which another rank, paused a step earlier, is missing."""
GRACE_SECONDS = 1.0
"""A monitor that was killed may have left a tool at work that takes a moment."""
_LOOK_SECONDS = 0.05

Send = Callable[[wire.PauseState], None]


class _Asker(Protocol):
    @property
    def gone(self) -> bool: ...


_pause: Pause | None = None


def handle(request: wire.Pause | wire.Resume, recorder: Recorder, send: Send, asker: _Asker) -> None:
    """Do what a monitor asks; called in the server thread, returns at once.

    Args:
        request: pause, or go on.
        recorder: whose steps end.
        send: tells the monitors; called from the training thread too.
        asker: who asked: when it has gone, so has the pause.
    """
    global _pause
    running = _pause if _pause is not None and not _pause.ended else None
    if isinstance(request, wire.Resume):
        if running is not None and running.request.id == request.id:
            running.resume()
        return
    refusal = ""
    if running is not None and not running.forgotten():
        refusal = "another llmtop is pausing it"
    elif recorder.tracks is not None:
        refusal = "its steps overlap, so that there is no moment between them"
    elif recorder.boundary_hook is not None:
        refusal = "a capture runs inside it"
    if refusal:
        send(wire.PauseState(id=request.id, state="failed", detail=refusal))
        return
    _pause = Pause(request, recorder, send, asker)
    _pause.arm()


class Pause:
    """One pause, from the request to the step that goes on."""

    def __init__(self, request: wire.Pause, recorder: Recorder, send: Send, asker: _Asker) -> None:
        self.request = request
        self.ended = False
        """Set when the last state has been told."""
        self._recorder = recorder
        self._send = send
        self._asker = asker
        self._holding = False
        self._released = threading.Event()

    def arm(self) -> None:
        """Hang the hook on the step boundary and tell so."""
        self._tell("armed")
        self._recorder.boundary_hook = self._at_boundary

    def resume(self) -> None:
        """Let the training go on, or take back what has not begun; from the server thread."""
        self._released.set()
        if not self._holding:
            self._end("resumed")

    def forgotten(self) -> bool:
        """Take it back if it has not begun and its monitor has gone; returns whether that was so."""
        if self._asker.gone and not self._holding:
            self._end("resumed")
        return self.ended

    def _at_boundary(self, index: int) -> None:
        """In the training thread, after a step has ended."""
        after = self.request.after
        if after is not None and index < after:
            return
        if self._released.is_set() or self._asker.gone:
            self._end("resumed")
            return
        self._holding = self._recorder.paused = True
        try:
            self._hold(index)
            self._recorder.paused = False
        finally:
            # A signal's handler that raises ends the pause; what it raised is the script's.
            self._end("failed", "the training was interrupted")

    def _hold(self, index: int) -> None:
        busy = self._drain(index)
        if self._released.is_set() or self._asker.gone:
            self._end("resumed", step=index)
            return
        if busy:
            self._end("failed", busy)
            return
        began = time.monotonic_ns()
        self._tell("paused", step=index)
        until = time.monotonic() + min(self.request.seconds, MAX_SECONDS)
        while not self._released.wait(_LOOK_SECONDS) and time.monotonic() < until:
            if self._asker.gone:
                self._released.wait(GRACE_SECONDS)
                break
        self._end("resumed", step=index, paused_ns=time.monotonic_ns() - began)

    def _drain(self, index: int) -> str:
        """Wait until the GPUs have done what this process has launched; returns why they have not.

        In a thread, because such a wait has no limit of its own: a thread that is left waiting does no harm.
        """
        try:
            devices = _devices()
            if not devices:
                return ""
            done = threading.Event()
            threading.Thread(target=_synchronize, args=(devices, done), name="llmtop-pause", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises, the training goes on
            return f"{type(error).__name__}: {error}"
        until = time.monotonic() + DRAIN_SECONDS
        while not done.wait(_LOOK_SECONDS):
            if time.monotonic() > until:
                return f"the GPU was still at work {DRAIN_SECONDS:.0f} s after step {index}"
            if self._released.is_set() or self._asker.gone:
                break
        return ""

    def _end(self, state: str, detail: str = "", step: int | None = None, paused_ns: int | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        if self._recorder.boundary_hook == self._at_boundary:
            self._recorder.boundary_hook = None
        self._tell(state, detail, step, paused_ns)

    def _tell(self, state: str, detail: str = "", step: int | None = None, paused_ns: int | None = None) -> None:
        self._send(wire.PauseState(id=self.request.id, state=state, detail=detail, step=step, paused_ns=paused_ns))


def _devices() -> list[int]:
    """The GPUs on which PyTorch has a context here: to wait for another one would make one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured across the end of the step")
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None:
        return [torch.cuda.current_device()]
    return [device for device in range(torch.cuda.device_count()) if has_context(device)]


def _synchronize(devices: list[int], done: threading.Event) -> None:
    torch: Any = sys.modules["torch"]
    with suppress(Exception):  # an error of the device: the script will meet it itself
        for device in devices:
            torch.cuda.synchronize(device)
        done.set()
