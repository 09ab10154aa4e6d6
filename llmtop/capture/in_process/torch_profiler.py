"""The torch.profiler engine: an attached PyTorch process records its own next steps."""

from __future__ import annotations

from llmtop.capture.in_process.engine import InProcessEngine


def engine() -> InProcessEngine:
    """One Chrome trace a process, with the steps and phases in it."""
    return InProcessEngine("torch.profiler", ".json", open_with="https://ui.perfetto.dev", analysed=True)
