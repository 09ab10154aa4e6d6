"""The nsys engine: its support of a process. The recording is in window.py, which is loaded at need."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmtop.capture.base.engine import Check, Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.nsys import lost_records, permissions
from llmtop.capture.nsys.sessions import can_pause, is_live, live_session, should_pause
from llmtop.errors import LlmtopError, NotPossibleHere, UnusableInput
from llmtop.nsys_cli import tool as nsys
from llmtop.nsys_cli.tool import Option
from llmtop.system import procfs

_PAUSE, _NO_PAUSE = "pause", "no-pause"


class NsysEngine(Engine):
    """Records with Nsight Systems; one report for all processes of a session."""

    name = "nsys"
    description = "kernels, copies, CUDA calls and NVTX phases of all its processes in one report"
    has_export_stage = True
    stays_in_process = True
    one_file_for_all = True
    launch_flag = "--nsys"
    open_with = "nsys-ui"
    options = nsys.OPTIONS

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        try:
            session = nsys.session_of(target.pid)
        except NotPossibleHere as refused:
            return Refusal(str(refused).partition(";")[0], "sudo llmtop")
        restart = self.restart_command(target)
        if session is None:
            return _missing_refusal() or Refusal(
                "nsys cannot attach to a running process, and this one was not started under nsys", restart
            )
        if not is_live(target.pid, session):
            return _missing_refusal() or Refusal("the nsys session of the process has ended", restart)
        if lost_records.has_loss(session):
            return Refusal(lost_records.REFUSAL, restart)
        return None

    def find_unattached(self, pids: Collection[int]) -> dict[int, bool]:
        """See `Engine.find_unattached`; of what nsys launched, all that is Python."""
        found = {}
        for pid in pids:
            with suppress(NotPossibleHere, OSError):
                if nsys.session_of(pid) is not None and procfs.runs_python(pid):
                    found[pid] = True
        return found

    def checks(self) -> list[Check]:
        """See `Engine.checks`."""
        return [_program_check(), permissions.cpu_sampling_check(), permissions.gpu_metrics_check()]

    def orphan_messages(self) -> list[str]:
        """See `Engine.orphan_messages`."""
        from llmtop.capture.nsys import orphans

        return orphans.orphan_messages()

    def warning(self, target: Target, options: Collection[str] = ()) -> str:
        """See `Engine.warning`; the cost of pausing is described at the options that decide on it."""
        found = live_session(target.pid)
        if found is None or not should_pause(target):
            return ""
        if can_pause(target):
            return "" if {_PAUSE, _NO_PAUSE} & set(options) else nsys.PAUSE_COST
        return (
            f"nsys {found[0].version_text} has crashed trainings on GPUs that did not pause for it, and this one "
            "cannot (it is not attached to this llmtop, or reports no steps): save a checkpoint first"
        )

    def pauses(self, target: Target) -> bool:
        """See `Engine.pauses`."""
        return should_pause(target) and can_pause(target)

    def available_options(self, pauses: bool) -> list[Option]:
        """See `Engine.available_options`; of pausing and not, what would not be done unasked."""
        hidden = _PAUSE if pauses else _NO_PAUSE
        return [option for option in super().available_options(pauses) if option.name != hidden]

    def option_refusal(self, name: str) -> Refusal | None:
        """See `Engine.option_refusal`."""
        if name == "gpu-metrics":
            return permissions.gpu_metrics_refusal()
        return permissions.cpu_sampling_refusal() if name == "cpu-sampling" else None

    def check_options(self, names: Collection[str]) -> None:
        """See `Engine.check_options`."""
        if {_PAUSE, _NO_PAUSE} <= set(names):
            raise UnusableInput("--option pause and --option no-pause exclude each other: pass one of them")
        super().check_options(names)

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        from llmtop.capture.nsys import window

        return window.record(job)

    def viewer_file(self, trace: Path) -> Path:
        """Nsight Systems opens the report that the SQLite was exported from."""
        return trace.with_suffix(".nsys-rep")

    def learn_from_report(self, job: CaptureJob, report: Any) -> None:
        """Where nsys lost kernels of a training it is not asked again: that has crashed trainings."""
        from llmtop.report.advice.table import RECORDS_LOST

        lost = {finding.evidence["pid"] for finding in report.findings if finding.id == RECORDS_LOST}
        for pid in lost & {target.pid for target in job.plan.targets}:
            # It may have ended, or the disk be full: the report stands all the same.
            with suppress(LlmtopError, OSError):
                tool, session = nsys.find_session(pid)
                if tool.needs_pause:  # other versions are not known to crash what they lose kernels of
                    lost_records.note_loss(session.id, [pid])


def _missing_refusal() -> Refusal | None:
    try:
        nsys.find_nsys()
    except NotPossibleHere as refused:
        because, _, command = str(refused).partition(": ")
        return Refusal(because, command)
    return None


def _program_check() -> Check:
    try:
        found = nsys.find_nsys()
    except NotPossibleHere as refusal:
        because, _, command = str(refusal).partition(": ")
        return Check(name="nsys", ok=False, says=because, command=command)
    says = f"{found.version_text} at {found.path}"
    cost = f"; each capture on a GPU {nsys.PAUSE_COST}" if found.needs_pause else ""
    return Check(name="nsys", ok=True, says=says + cost)
