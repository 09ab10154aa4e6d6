"""Table of the ways in which a process records itself: PyTorch's profiler, its allocator's history."""

from __future__ import annotations

import gc
import pickle
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

from llmtop.instrument.control import allocator_snapshot, cupti, out_of_memory
from llmtop.instrument.control.jax_profiler import JaxProfiler
from llmtop.instrument.control.recording import Recording

if TYPE_CHECKING:
    from llmtop.instrument.record.recorder import Recorder

WARMUP_STEPS = 1
"""Recorded and thrown away: CUPTI's start lies in it (1.5 s at the first capture of a process)."""
MEMORY_ENTRIES = 200_000
"""Allocations kept by a memory snapshot; with Python stacks some 100 to 200 MB at most."""
GPU_SECONDS = 1.0
"""How long an end in the middle waits for the GPU."""

_ours: weakref.WeakSet[Any] = weakref.WeakSet()
"""Profilers of earlier captures; they lie in reference cycles until Python collects them."""


class TorchProfiler(Recording):
    """torch.profiler over so many steps, with llmtop's phases as annotations."""

    engine = "torch.profiler"
    warmup = WARMUP_STEPS
    # By the device's clock a step ends where the next begins: of two recorded steps, one is whole.
    least_steps = 2
    # torch 2.13, CPU, 45,000 to 680,000 events: an event takes 110 to 220 bytes while it is recorded (410 with
    # shapes), 1,850 (3,800) at the peak, in export_chrome_trace: 8 to 16 times as much.
    peak_factor = 12.0
    leaves_threads = True

    @classmethod
    def is_available(cls, torch: Any) -> bool:
        return hasattr(torch, "profiler")

    @classmethod
    def refusal(cls) -> str:
        """Scans all objects; in the server thread this delays no step."""
        if cupti.is_leaving(sys.modules["torch"]):
            return "the last capture has only just ended, and leaves the process: try again in two seconds"
        if scripts_profiler():
            return "the script has a torch.profiler of its own, and two cannot run: use nsys, kineto or py-spy"
        return ""

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
        cupti.leave_when_done(sys.modules["torch"])
        cupti.check_has_left(sys.modules["torch"])
        self._profile.start()
        _ours.add(self._profile.profiler)
        self._recorder.annotate_with(self._annotation)

    def step(self) -> None:
        self._profile.step()

    def stop(self) -> None:
        self._recorder.annotate_with(None)
        cupti.end_recording(self._profile.stop)

    def abandon(self) -> None:
        """Stop without the wait for the GPU that `stop` begins with: a collective may never end."""
        import torch

        self._recorder.annotate_with(None)
        if not torch.autograd._profiler_enabled():
            return  # it is still warming up
        _await_gpu(torch.cuda)
        cupti.end_recording(torch.autograd._disable_profiler)

    def write(self, path: str) -> None:
        self._profile.export_chrome_trace(path)
        self._profile.profiler = None  # which holds all events


class MemoryHistory(Recording):
    """Recording of every allocation and release of the CUDA allocator, with Python stacks, over some steps."""

    engine = "memory"

    @classmethod
    def is_available(cls, torch: Any) -> bool:
        version = getattr(torch, "version", None)
        return hasattr(torch, "profiler") and bool(getattr(version, "cuda", None))

    def __init__(self, recorder: Recorder, steps: int, options: dict[str, bool]) -> None:
        import torch

        self._torch: Any = torch
        self._recorder = recorder
        self._snapshot: Any = None
        self._marks = allocator_snapshot.Marks()
        if not torch.cuda.is_initialized():
            raise RuntimeError("the process does not use CUDA, and only CUDA's allocator keeps a history")
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)  # since PyTorch 2.1
        self._own = not out_of_memory.keeps_history()
        if self._own and enabled is not None and enabled():
            raise RuntimeError(
                "the allocator's history is being recorded already, by the script; it was left alone"
            )

    def start(self) -> None:
        if self._own:  # else it is on for as long as the process lives
            self._torch.cuda.memory._record_memory_history(
                enabled="all", context="all", stacks="python", max_entries=MEMORY_ENTRIES
            )
        self._marks.step()
        self._recorder.annotate_with(self._marks.phase)

    def step(self) -> None:
        self._marks.step()

    def stop(self) -> None:
        self._marks.step()
        self._recorder.annotate_with(None)
        memory = self._torch.cuda.memory
        try:
            self._snapshot = memory._snapshot()
        finally:
            if self._own:
                memory._record_memory_history(enabled=None)

    def abandon(self) -> None:
        self._recorder.annotate_with(None)
        if self._own:
            self._torch.cuda.memory._record_memory_history(enabled=None)

    def write(self, path: str) -> None:
        allocator_snapshot.add_marks(self._snapshot, self._marks, allocator_snapshot.owners())
        with open(path, "wb") as file:
            pickle.dump(self._snapshot, file)


def _await_gpu(cuda: Any) -> None:
    """Wait until the current stream is done, `GPU_SECONDS` at most: CUPTI bears kernels in flight badly."""
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return
    reached = cuda.Event()
    reached.record()
    until = time.monotonic() + GPU_SECONDS
    while not reached.query() and time.monotonic() < until:
        time.sleep(0.005)


def scripts_profiler() -> bool:
    """Return True if the script holds a torch.profiler: starting a second one raises in the script, not here."""
    torch = sys.modules["torch"]
    if torch.autograd._profiler_enabled():
        return True
    older = torch.autograd.profiler
    kinds = (torch.profiler.profile, older.profile, older.emit_nvtx, older.emit_itt)
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    return not all(thing in _ours for thing in found)


def has_cuda_graph() -> bool:
    """Return True if the process holds a CUDA graph."""
    kind = sys.modules["torch"].cuda.CUDAGraph
    return any(issubclass(type(thing), kind) for thing in gc.get_objects())


RECORDINGS: dict[str, type[Recording]] = {
    kind.engine: kind for kind in (TorchProfiler, JaxProfiler, MemoryHistory)
}
"""Recordings by the name of the engine, best first."""
