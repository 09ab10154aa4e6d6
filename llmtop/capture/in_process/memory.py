"""The memory engine: an attached PyTorch process records every allocation of its next steps, with stacks."""

from __future__ import annotations

from llmtop.capture.in_process.engine import InProcessEngine


class MemoryEngine(InProcessEngine):
    """One pickle a process, for PyTorch's own viewer; it is made for a person to look at, not for a report."""

    name = "memory"
    gives = "every allocation of some steps with its stack, for PyTorch's memory viewer"
    reports = False
    suffix = ".memory.pickle"
    open_with = "https://pytorch.org/memory_viz"
