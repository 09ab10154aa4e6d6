"""The memory engine: an attached PyTorch process records every allocation of its next steps, with stacks."""

from __future__ import annotations

from pathlib import Path

from llmtop.capture.base.engine import Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.in_process.engine import InProcessEngine
from llmtop.document.model import Document
from llmtop.errors import UnusableInput
from llmtop.format import printable


class MemoryEngine(InProcessEngine):
    """One pickle per process: `llmtop report` and PyTorch's own viewer open it."""

    name = "memory"
    description = "every allocation of some steps with its stack: who holds what, the peak, leaks"
    has_time_report = False
    report_kind = "memory"
    suffix = ".memory.pickle"
    open_with = "https://pytorch.org/memory_viz"

    def missing_device_refusal(self, target: Target) -> Refusal:
        """See `InProcessEngine.missing_device_refusal`: it records the allocator of CUDA, which there must be."""
        version = printable((target.hello.torch if target.hello else None) or "")
        return Refusal(f"its PyTorch {version} has no CUDA".replace("  ", " "))

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`; also reports on the snapshots."""
        recorded = super().record(job)
        job.stage("analyse", "reading the snapshots")
        try:
            recorded.report = memory_report(job.folder)
        except UnusableInput as error:
            recorded.notes.append(f"no report could be made: {error}")
        return recorded


def memory_report(folder: Path) -> tuple[Document, object]:
    """Return the report of the snapshots in a folder, as a document and as data."""
    import msgspec

    from llmtop.memory.analyze import analyze_memory
    from llmtop.memory.document import memory_document
    from llmtop.memory.files import memory_files

    found = analyze_memory(memory_files([folder]) or [folder])
    return memory_document(found), msgspec.to_builtins(found)
