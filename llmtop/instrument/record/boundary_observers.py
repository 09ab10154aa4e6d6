"""Observers of step and phase boundaries: NVTX, the GPU clock, torch's own annotations.

There is a watch only while one of them is active. NVTX ranges cost some microseconds a step in a real training,
and only a tool present at the start of the process can record them, so they are emitted only where the environment
shows such a tool (nsys, ncu and everything else that NVTX loads by its own rules), or `LLMTOP_NVTX=1` asks for
them.

Ranges lie in NVTX's default domain. A step's is named ``step``, a phase's has the phase's own name without its
parents (nesting says those). `nvtx.annotate`, made once a name and entered again, is the one cheap form that nvtx
0.2.10 and 0.2.17 share. Hooks open and close a step inside calls of the script's own, whose ranges must nest; so
their steps are start/end ranges, which belong to no stack.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from llmtop.instrument.guest.interrupts import raised_by_handler
from llmtop.instrument.steps.phase_tree import HIDDEN, STEP, PhaseNode
from llmtop.naming import variable_names

if TYPE_CHECKING:
    from llmtop.instrument.gpu.clock import GpuClock
    from llmtop.instrument.gpu.kept_memory import KeptMemory
    from llmtop.instrument.record.cpu_waits import CpuWaits
    from llmtop.instrument.record.recorder_parts import PhaseObserver

STEP_RANGE = "step"
Annotate = Callable[[str], AbstractContextManager[Any]]

_TOOL_VARIABLES = (
    "LLMTOP_NVTX",
    variable_names.NVTX_INJECTION,  # github.com/NVIDIA/NVTX, nvtxInit.h: the library that NVTX hands its calls to
    "NVTX_INJECTION32_PATH",
    variable_names.CUDA_INJECTION,  # a tool that the CUDA driver loads may ask the driver for NVTX as well
    variable_names.NSYS_SESSION,
)


def tool_listens() -> bool:
    """Return True if something that records NVTX was there when this process started."""
    preload = os.environ.get("LD_PRELOAD", "").lower()
    return any(os.environ.get(name) for name in _TOOL_VARIABLES) or "inject" in preload or "nvtx" in preload


class Nvtx:
    """Ranges by the nvtx package, for nsys; nothing where it cannot be imported."""

    def __init__(self) -> None:
        try:
            import nvtx
        except Exception as error:  # whatever a broken install raises, the training goes on without ranges
            if raised_by_handler(error):
                raise
            nvtx = None
        self._nvtx: Any = nvtx
        self._made: dict[str, Any] = {}

    def push(self, name: str) -> None:
        """Open a range in the calling thread."""
        if self._nvtx is not None:
            made = self._made.get(name)
            if made is None:
                made = self._made[name] = self._nvtx.annotate(name)
            made.__enter__()

    def pop(self, name: str) -> None:
        """Close the innermost range of the calling thread, which `push` opened with that name."""
        made = self._made.get(name)
        if made is not None:
            made.__exit__(None, None, None)

    def start(self, name: str) -> Any:
        """Open a range that may end in another order or thread; pass the answer to `end`."""
        return None if self._nvtx is None else self._nvtx.start_range(name)

    def end(self, handle: Any) -> None:
        """Close the range that `start` opened; nothing for None."""
        if handle is not None:
            self._nvtx.end_range(handle)


class Watch:
    """Called at every boundary while an observer is active; one object, whose parts come and go."""

    def __init__(self) -> None:
        self.nvtx: Nvtx | None = None
        self.clock: GpuClock | None = None
        """The GPU clock, while this step is to be timed."""
        self.annotate: Annotate | None = None
        """torch's annotation, while a profiler records."""
        self.arrival: PhaseObserver | None = None
        """Observer that stamps when this rank reaches the collectives, while this step is sampled."""
        self.waits: CpuWaits | None = None
        """Observer that separates waits for a CPU, while this step is sampled."""
        self.memory: KeptMemory | None = None
        """Observer of allocations, while this step is sampled; no other one is then."""
        self.step_is_hooked = False
        self._step = PhaseNode(STEP_RANGE, None, "", STEP)
        self._step_range: Any = None
        self._annotated: list[tuple[PhaseNode, AbstractContextManager[Any]]] = []

    @property
    def is_needed(self) -> bool:
        """Return True if any observer is set, so that the recorder must notify them at each phase's begin and
        end."""
        wanted = self.nvtx, self.clock, self.annotate, self.arrival, self.waits, self.memory
        return any(one is not None for one in wanted) or bool(self._annotated)

    def begin(self, node: PhaseNode) -> None:
        """Notify all observers that a phase begins."""
        if node.slot == HIDDEN and not node.name:
            return
        if self.nvtx is not None:
            self.nvtx.push(node.name)
        if self.annotate is not None and node.slot != STEP:
            annotation = self.annotate(node.name)
            annotation.__enter__()
            self._annotated.append((node, annotation))
        if self.clock is not None:
            self.clock.mark(node.slot, True)
        if self.arrival is not None:
            self.arrival.begins(node)
        if self.memory is not None:
            self.memory.begins(node)
        if self.waits is not None:
            self.waits.begins(node)  # last, as it is first at the end: the others' work is in no phase

    def end(self, node: PhaseNode) -> None:
        """Notify all observers that a phase ends."""
        if self.waits is not None:
            self.waits.ends(node)
        if self.clock is not None:
            self.clock.mark(node.slot, False)
        if self.arrival is not None:
            self.arrival.ends(node)
        if self.memory is not None:
            self.memory.ends(node)
        self._close(node)

    def give_up(self, node: PhaseNode) -> None:
        """Notify all observers that an open phase ends and is not counted."""
        if self.clock is not None:
            self.clock.unmark(node.slot)
        if self.waits is not None:
            self.waits.give_up()
        if self.memory is not None:
            self.memory.give_up()
        self._close(node)

    def move(self, slot: int, target: int) -> None:
        """Move the GPU clock's record of one slot to another."""
        if self.clock is not None:
            self.clock.move(slot, target)

    def begin_step(self) -> None:
        """Notify all observers that a step begins."""
        if self.nvtx is not None and self.step_is_hooked:
            self._step_range = self.nvtx.start(STEP_RANGE)
            if self.clock is not None:
                self.clock.mark(STEP, True)
        else:
            self.begin(self._step)

    def end_step(self) -> None:
        """Notify all observers that a step ends."""
        if self._step_range is not None and self.nvtx is not None:
            if self.waits is not None:
                self.waits.ends(self._step)
            if self.clock is not None:
                self.clock.mark(STEP, False)
            self.nvtx.end(self._step_range)
            self._step_range = None
        else:
            self.end(self._step)

    def _close(self, node: PhaseNode) -> None:
        if self._annotated and self._annotated[-1][0] is node:
            self._annotated.pop()[1].__exit__(None, None, None)
        if self.nvtx is not None and (node.slot != HIDDEN or node.name):
            self.nvtx.pop(node.name)
