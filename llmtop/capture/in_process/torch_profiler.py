"""The torch.profiler engine: an attached PyTorch process records its own next steps."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from llmtop.capture.base import traces
from llmtop.capture.base.engine import PERFETTO, Refusal
from llmtop.capture.base.job import CaptureJob, Target
from llmtop.capture.in_process.engine import InProcessEngine
from llmtop.capture.nsys import sessions
from llmtop.capture.torch_xla import ports
from llmtop.nsys_cli.tool import Option


class TorchProfilerEngine(InProcessEngine):
    """One Chrome trace a process, with the steps and phases in it."""

    name = "torch.profiler"
    description = "kernels, operators and phases, recorded by the training itself at step boundaries"
    options = (
        Option(
            "stacks",
            "the Python stack of each operator",
            "steps can take twice as long; the file is several times as large",
            False,
        ),
        Option("shapes", "the shapes of each operator's inputs", "each operator becomes some µs slower", False),
        Option("memory", "each allocation of the CPU's and CUDA's allocators", "a larger file", False),
    )
    suffix = traces.ENDING
    open_with = PERFETTO

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        return super().refusal(target) or sessions.tracer_refusal(target, self.restart_command(target))

    def warning(self, target: Target, options: Collection[str] = ()) -> str:
        """See `Engine.warning`."""
        if ports.loaded_extension(target.pid) is None:
            return ""
        return f"of a training on torch_xla it records the host alone; for the device: {ports.START}"

    def path_for(self, job: CaptureJob, target: Target) -> Path:
        """See `InProcessEngine.path_for`."""
        return traces.path_for(job, target)

    def complete_file(self, target: Target, path: Path) -> None:
        """See `InProcessEngine.complete_file`."""
        traces.write_label(path, *traces.rank_and_world_size(target))
