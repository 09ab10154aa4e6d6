"""What a process can record of itself with PyTorch: its profiler, and the history of its allocator."""

from __future__ import annotations

import pickle
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from llmtop import wire

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


def is_ours(profiler: object) -> bool:
    """Whether a profiler of torch's was made here."""
    return profiler in _ours


class Recording(Protocol):
    """One way to record; every method is called in the training thread but `write`."""

    warmup: int
    leaves_threads: bool
    """Whether it starts threads that stay, and that a forked child lacks at its exit."""

    def start(self) -> None:
        """Begin, at a step boundary."""

    def step(self) -> None:
        """A boundary passed, and there are more to come."""

    def stop(self) -> None:
        """End, at a step boundary."""

    def abandon(self) -> None:
        """End at once, wherever the training stands; what was recorded is lost."""

    def write(self, path: str) -> None:
        """Write what was recorded; called in another thread, after `stop`."""


def recording_of(request: wire.CaptureRequest, recorder: Recorder, steps: int) -> Recording:
    """What records as the request says; in the training thread."""
    if request.engine == "memory":
        return MemoryHistory()
    return TorchProfiler(recorder, steps, request.options)


class TorchProfiler:
    """torch.profiler over so many steps, with llmtop's phases as annotations."""

    warmup = WARMUP_STEPS
    leaves_threads = True

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

    def abandon(self) -> None:
        """Without the wait for the GPU that `stop` begins with: a collective may never come to an end."""
        import torch

        self._recorder.annotate_with(None)
        if not torch.autograd._profiler_enabled():
            return  # it is still warming up
        _await_gpu(torch.cuda)
        torch.autograd._disable_profiler()

    def write(self, path: str) -> None:
        self._profile.export_chrome_trace(path)
        self._profile.profiler = None  # which holds all events


class MemoryHistory:
    """Every allocation and release of the CUDA allocator, with Python stacks, over some steps."""

    warmup = 0
    leaves_threads = False

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

    def abandon(self) -> None:
        self._torch.cuda.memory._record_memory_history(enabled=None)

    def write(self, path: str) -> None:
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
