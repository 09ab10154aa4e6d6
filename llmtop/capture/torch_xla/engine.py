"""The torch_xla engine: the profiler server that the script has started is asked for a window by time."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from llmtop.capture.base import traces
from llmtop.capture.base.engine import Check, Engine, Refusal
from llmtop.capture.base.job import CaptureJob, Recorded, Target
from llmtop.capture.base.wait_for_window import recording_seconds
from llmtop.capture.torch_xla import ports
from llmtop.errors import NotPossibleHere
from llmtop.format import duration
from llmtop.trace.xla import viewer as xla_viewer

_BY_TIME: Final = "torch_xla's profiler records by the clock, so the window is {} long"


class TorchXlaEngine(Engine):
    """One of XLA's own files a process, with torch_xla's marks of steps and the script's annotations in it."""

    name = "xla.profiler"
    description = "what XLA ran on the devices, by the profiler server that a script of torch_xla has started"
    is_time_based = True
    open_with = "xprof --logdir"

    def refusal(self, target: Target) -> Refusal | None:
        """See `Engine.refusal`."""
        return ports.refusal(target.pid)

    def find_unattached(self, pids: Collection[int]) -> dict[int, bool]:
        """See `Engine.find_unattached`."""
        return ports.serving_pids(set(pids))

    def checks(self) -> list[Check]:
        """See `Engine.checks`; the readers of its files are listed by the engine of JAX."""
        says = (
            "captures trainings whose script has started the profiler server of torch_xla (tested on its CPU "
            "backend, not on TPUs and GPUs)"
        )
        return [Check(name="torch_xla", ok=None, says=says, command=ports.START)]

    def warning(self, target: Target, options: Collection[str] = ()) -> str:
        """See `Engine.warning`."""
        if xla_viewer.is_xprof_installed():
            return ""
        return f"its file is read with the package xprof, which is not installed here: {xla_viewer.INSTALL}"

    def viewer_file(self, trace: Path) -> Path:
        """See `Engine.viewer_file`; xprof takes a folder."""
        return trace.parent

    def restart_command(self, target: Target) -> str:
        """See `Engine.restart_command`."""
        return ports.START

    def record(self, job: CaptureJob) -> Recorded:
        """See `Engine.record`."""
        from llmtop.capture.torch_xla.client import ProfilerClient  # a monitor loads this module, too

        job.stage("prepare", "torch_xla's own client is loaded")
        clients: list[ProfilerClient] = []
        recorded = Recorded(tool={"client": "torch_xla.debug.profiler.trace"})
        try:
            for target in job.plan.targets:
                folder = job.folder / f"{target.file_stem}.recording"
                clients.append(ProfilerClient(target, ports.profiler_port(target.pid), folder))
            for client in clients:
                client.await_ready(job)
            job.stage("start")
            seconds = job.plan.seconds or recording_seconds(job)  # its steps were received meanwhile
            begun, began = time.time_ns(), time.monotonic()
            for client in clients:
                client.record(seconds)
            job.stage("record")
            found = [client.await_file(job, seconds, began) for client in clients]
            job.window = (begun, begun + round(1e9 * seconds))
            job.stage("stop")
            for client, file in zip(clients, found, strict=True):
                recorded.traces.append(_keep_file(job, client.target, file))
        finally:
            for client in clients:
                client.close()
        if job.plan.steps is not None:
            recorded.notes.append(_BY_TIME.format(duration(seconds)))
        return recorded


def _keep_file(job: CaptureJob, target: Target, file: Path) -> Path:
    path = traces.path_for(job, target, xla_viewer.ENDING)
    try:
        os.replace(file, path)
    except OSError as error:
        raise NotPossibleHere(f"{file} cannot be moved to {path}: {error.strerror}") from None
    return path
