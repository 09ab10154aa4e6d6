"""Captures that this process takes of itself, when a monitor asks: torch.profiler, and the allocator's history.

Starting torch.profiler in any other thread than the one it shall record gives an empty trace, and stopping it in
another than it was started in ends the process with a segmentation fault. So the server thread only hangs a hook
on the step boundary; the training thread itself starts, steps and stops; and a thread of the capture's own writes
the file and tells the monitor. Whatever goes wrong is told and ends the capture, never the training.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from llmtop import wire

if TYPE_CHECKING:
    from llmtop.publish.recorder import Recorder

Send = Callable[[wire.FromTraining], None]

WARMUP_STEPS = 1
"""Recorded and thrown away: CUPTI's start lies in it (1.5 s at the first capture of a process)."""
MAX_STEPS = 1000
MEMORY_ENTRIES = 200_000
"""Allocations kept by a memory snapshot; with Python stacks some 100 to 200 MB at most."""

_ours: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of earlier captures; they lie in reference cycles until Python collects them."""
_lock = threading.Lock()
_running: Capture | None = None


def engines() -> list[str]:
    """What this process can take of itself now; imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "profiler"):
        return []
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    return ["torch.profiler", "memory"] if cuda else ["torch.profiler"]


def handle(request: wire.CaptureRequest | wire.CaptureCancel, recorder: Recorder, send: Send) -> None:
    """Do what a monitor asks; called in the server thread, returns at once.

    Args:
        request: begin, or call off.
        recorder: whose steps are recorded.
        send: tells the monitor; called from a thread of the capture's own.
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
        _running = Capture(request, recorder, send)
        _running.arm()


class _Recording(Protocol):
    """One way to record; every method is called in the training thread but `write`."""

    warmup: int

    def start(self) -> None:
        """Begin, at a step boundary."""

    def step(self) -> None:
        """A boundary passed, and there are more to come."""

    def stop(self) -> None:
        """End, at a step boundary."""

    def write(self, path: str) -> None:
        """Write what was recorded; called in another thread, after `stop`."""


class Capture:
    """One capture, from the request to the file."""

    def __init__(self, request: wire.CaptureRequest, recorder: Recorder, send: Send) -> None:
        self.request = request
        self.ended = threading.Event()
        """Set when the last state has been told."""
        self._recorder = recorder
        self._send = send
        self._states: queue.SimpleQueue[tuple[str, str, bool]] = queue.SimpleQueue()
        self._steps = max(1, min(request.steps, MAX_STEPS))
        self._recording: _Recording | None = None
        self._thread = 0
        self._boundaries = 0
        self._first: int | None = None
        self._last: int | None = None
        self._cancelled = False

    def arm(self) -> None:
        """Hang the hook on the step boundary and tell so."""
        threading.Thread(target=self._tell, name="llmtop-capture", daemon=False).start()
        refusal = self._refusal()
        if refusal:
            self._end("failed", refusal)
            return
        self._states.put(("armed", "", False))
        self._recorder.boundary_hook = self._at_boundary

    def cancel(self) -> None:
        """Call it off: at once while nothing has begun, else at the next boundary."""
        self._cancelled = True
        if self._recording is None and self._recorder.boundary_hook == self._at_boundary:
            self._recorder.boundary_hook = None
            self._end("cancelled", "")

    def _refusal(self) -> str:
        """Why it cannot be done; in the server thread, where a look at all objects delays nobody."""
        if self.request.engine not in engines():
            return f"{self.request.engine} is not offered by this process"
        if self._recorder.boundary_hook is not None:
            return "the training is being paused for another capture: try again"
        if not os.path.isabs(self.request.path):
            return "the path is not absolute"
        if self.request.engine == "torch.profiler" and _own_profiler():
            return "the script has a torch.profiler of its own, and two cannot run: use nsys, kineto or py-spy"
        return ""

    def _at_boundary(self, index: int) -> None:
        """In the training thread, after a step has ended."""
        try:
            self._advance(index)
        except Exception as error:  # noqa: BLE001 - whatever PyTorch raises, the training goes on
            self._give_up(f"{type(error).__name__}: {error}")

    def _advance(self, index: int) -> None:
        if self._recording is None:
            if self._cancelled:
                self._unhook("cancelled", "")
                return
            self._thread = get_ident()
            recording = _recording_of(self.request, self._recorder, self._steps)
            recording.start()
            self._recording = recording
            self._boundaries = -recording.warmup
            self._began(index)
            return
        if get_ident() != self._thread:
            return  # the steps of another thread are none of this capture's
        self._boundaries += 1
        if self._cancelled:
            self._recording.stop()
            self._unhook("cancelled", "")
        elif self._boundaries < self._steps:
            self._recording.step()
            self._began(index)
            if self._boundaries > 0:
                self._last = index
                self._states.put(("recording", "", False))
        else:
            self._recording.stop()
            self._last = index
            self._recorder.boundary_hook = None
            self._states.put(("writing", "", True))

    def _began(self, index: int) -> None:
        if self._boundaries == 0:
            self._first = index + 1
            self._states.put(("recording", "", False))

    def _give_up(self, reason: str) -> None:
        if self._recording is not None:
            with suppress(Exception):  # it may be the stop that has just failed
                self._recording.stop()
        self._unhook("failed", reason)

    def _unhook(self, state: str, detail: str) -> None:
        self._recorder.boundary_hook = None
        self._end(state, detail)

    def _end(self, state: str, detail: str) -> None:
        self._states.put((state, detail, True))

    def _tell(self) -> None:
        """In the capture's own thread: tell the monitor, and write the file."""
        try:
            while True:
                state, detail, last = self._states.get()
                self._say(state, detail)
                if state == "writing":
                    self._say(*self._write())
                if last:
                    return
        finally:
            self._recording = None
            self.ended.set()

    def _write(self) -> tuple[str, str]:
        recording = self._recording
        partial = self.request.path + ".part"
        try:
            if recording is None:
                return "failed", "nothing was recorded"
            recording.write(partial)
            os.replace(partial, self.request.path)
        except Exception as error:  # noqa: BLE001 - a full disk, a folder that has gone, anything of PyTorch's
            with suppress(OSError):
                os.unlink(partial)
            return "failed", f"{self.request.path} could not be written ({error}); nothing was kept"
        return "done", ""

    def _say(self, state: str, detail: str) -> None:
        message = wire.CaptureState(
            id=self.request.id,
            state=state,
            detail=detail,
            path=self.request.path if state == "done" else "",
            first_step=self._first,
            last_step=self._last if state != "armed" else None,
        )
        with suppress(Exception):  # the monitor has gone: the capture is finished all the same
            self._send(message)


def _own_profiler() -> bool:
    """Whether the script holds a torch.profiler: starting a second one raises in the script, not here."""
    torch = sys.modules["torch"]
    if torch.autograd._profiler_enabled():
        return True
    kinds = (torch.profiler.profile, torch.autograd.profiler.profile)
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    return any(thing not in _ours for thing in found)


def _recording_of(request: wire.CaptureRequest, recorder: Recorder, steps: int) -> _Recording:
    if request.engine == "memory":
        return _MemoryHistory()
    return _TorchProfiler(recorder, steps, request.options)


class _TorchProfiler:
    """torch.profiler over so many steps, with llmtop's phases as annotations."""

    warmup = WARMUP_STEPS

    def __init__(self, recorder: Recorder, steps: int, options: dict[str, bool]) -> None:
        import torch.profiler as torch_profiler

        kinds = torch_profiler.ProfilerActivity
        activities = [kinds.CPU]
        if kinds.CUDA in torch_profiler.supported_activities():
            activities.append(kinds.CUDA)
        self._recorder = recorder
        self._annotation: Any = torch_profiler.record_function
        self._profile: Any = torch_profiler.profile(
            activities=activities,
            schedule=torch_profiler.schedule(wait=0, warmup=self.warmup, active=steps, repeat=1),
            on_trace_ready=lambda profile: None,
            record_shapes=options.get("shapes", False),
            profile_memory=options.get("memory", False),
            with_stack=options.get("stacks", False),
        )
        _ours.add(self._profile)

    def start(self) -> None:
        self._profile.start()
        _ours.add(self._profile.profiler)
        self._recorder.annotate_with(self._annotation)

    def step(self) -> None:
        self._profile.step()

    def stop(self) -> None:
        self._recorder.annotate_with(None)
        self._profile.stop()

    def write(self, path: str) -> None:
        self._profile.export_chrome_trace(path)
        self._profile.profiler = None  # which holds all events


class _MemoryHistory:
    """Every allocation and release of the CUDA allocator, with Python stacks, over some steps."""

    warmup = 0

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._snapshot: Any = None
        if not torch.cuda.is_initialized():
            raise RuntimeError("the process does not use CUDA, and only CUDA's allocator keeps a history")
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # since PyTorch 2.1
        if enabled is not None and enabled():
            raise RuntimeError("the script records the allocator's history itself; it was left alone")

    def start(self) -> None:
        self._torch.cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="python", max_entries=MEMORY_ENTRIES
        )

    def step(self) -> None:
        """Nothing to do at a boundary."""

    def stop(self) -> None:
        memory = self._torch.cuda.memory
        try:
            self._snapshot = memory._snapshot()
        finally:
            memory._record_memory_history(enabled=None)

    def write(self, path: str) -> None:
        with open(path, "wb") as file:
            pickle.dump(self._snapshot, file)
