"""What this machine lets an ordinary user record of the whole of it."""

from __future__ import annotations

import os
from pathlib import Path

from llmtop.capture.engine import Refusal


def gpu_metrics_refusal() -> Refusal | None:
    """Why the GPU's counters cannot be had; None if they can, or if there is no driver to ask."""
    if os.geteuid() == 0 or not profiling_restricted():
        return None
    return Refusal(
        "the driver gives GPU metrics to root only (RmProfilingAdminOnly is 1)",
        "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia.conf, "
        "then reboot",
    )


def cpu_sampling_refusal() -> Refusal | None:
    """Why CPU samples of the whole machine cannot be had; None if they can, or if the kernel has none to give.

    What `llmtop run --nsys` started is none of nsys's descendants: only the whole machine covers it.
    """
    paranoid = perf_paranoid()
    if os.geteuid() == 0 or paranoid is None or paranoid <= 0:
        return None
    return Refusal(
        f"the kernel gives CPU samples of the whole machine to root only (perf_event_paranoid is {paranoid})",
        "sudo sysctl kernel.perf_event_paranoid=0",
    )


def profiling_restricted() -> bool | None:
    """Whether the driver keeps its counters to root; None without a driver."""
    try:
        text = Path("/proc/driver/nvidia/params").read_text(errors="replace")
    except OSError:
        return None
    return "RmProfilingAdminOnly: 1" in text


def perf_paranoid() -> int | None:
    """kernel.perf_event_paranoid; None where the kernel has no perf events."""
    try:
        return int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        return None
