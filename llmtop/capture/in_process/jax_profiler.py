"""The jax.profiler engine: an attached JAX process records its own next steps."""

from __future__ import annotations

from pathlib import Path

from llmtop.capture.base import traces
from llmtop.capture.base.engine import PERFETTO, Check, Refusal
from llmtop.capture.base.job import CaptureJob, Target
from llmtop.capture.in_process.engine import InProcessEngine
from llmtop.capture.nsys import sessions
from llmtop.naming import file_names
from llmtop.nsys_cli.tool import Option
from llmtop.trace.xla import viewer as xla_viewer


class JaxProfilerEngine(InProcessEngine):
    """One Chrome trace a process and XLA's own file beside it, with the steps and phases in them."""

    name = "jax.profiler"
    description = (
        "what XLA ran on the devices and the phases, recorded by the JAX process itself at step boundaries"
    )
    options = (Option("stacks", "each call of a Python function", "each of them becomes some µs slower", False),)
    unavailable_reason = "it has not imported jax, or one that keeps its trace where llmtop does not know it"
    suffix = file_names.CHROME_TRACE_OF_XLA
    open_with = PERFETTO

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        return super().refusal(target) or sessions.tracer_refusal(target, self.restart_command(target))

    def checks(self) -> list[Check]:
        """See `Engine.checks`; the window itself needs nothing but the process that is captured."""
        if xla_viewer.is_xprof_installed():
            return [Check(name="xprof", ok=True, says="xprof reads the .xplane.pb files of XLA")]
        says = (
            "xprof is not installed; only .xplane.pb files of XLA need it, .trace.json.gz of jax.profiler does not"
        )
        return [Check(name="xprof", ok=None, says=says, command=xla_viewer.INSTALL)]

    def unavailable_refusal(self, target: Target) -> Refusal:
        """See `InProcessEngine.unavailable_refusal`."""
        return Refusal(self.unavailable_reason)

    def path_for(self, job: CaptureJob, target: Target) -> Path:
        """See `InProcessEngine.path_for`."""
        return traces.path_for(job, target, self.suffix)

    def complete_file(self, target: Target, path: Path) -> None:
        """See `InProcessEngine.complete_file`."""
        traces.write_gzipped_label(path, target.pid, *traces.rank_and_world_size(target))
