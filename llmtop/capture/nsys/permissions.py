"""Permissions of this machine for system-wide recording by an ordinary user."""

from __future__ import annotations

import os

from llmtop.capture.base.engine import Check, Refusal
from llmtop.system import procfs


def gpu_metrics_refusal() -> Refusal | None:
    """Return why the GPU's counters cannot be had; None if they can, or if there is no driver to ask."""
    if os.geteuid() == 0 or not procfs.are_gpu_counters_restricted():
        return None
    return Refusal(
        "the driver allows GPU metrics for root only (RmProfilingAdminOnly is 1)",
        "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia.conf, "
        "then reboot",
    )


def cpu_sampling_refusal() -> Refusal | None:
    """Return why CPU samples of the whole machine cannot be had; None if they can, or if the kernel has none to
    give.

    What `llmtop run --nsys` started is none of nsys's descendants: only the whole machine covers it.
    """
    paranoid = procfs.perf_event_paranoid()
    if os.geteuid() == 0 or paranoid is None or paranoid <= 0:
        return None
    return Refusal(
        f"the kernel allows system-wide CPU samples for root only (perf_event_paranoid is {paranoid})",
        "sudo sysctl kernel.perf_event_paranoid=0",
    )


def cpu_sampling_check() -> Check:
    """Return True if CPU samples of the whole machine can be had."""
    level = procfs.perf_event_paranoid()
    refused = cpu_sampling_refusal()
    if refused:
        return Check(name="CPU sampling", ok=False, says=refused.reason, command=refused.command)
    says = (
        "not available, because this kernel has no perf events"
        if level is None
        else f"allowed (perf_event_paranoid is {level})"
    )
    return Check(name="CPU sampling", ok=level is not None, says=says)


def gpu_metrics_check() -> Check:
    """Return True if the GPU's counters can be had."""
    refused = gpu_metrics_refusal()
    if refused:
        return Check(name="GPU metrics", ok=False, says=refused.reason, command=refused.command)
    restricted = procfs.are_gpu_counters_restricted()
    if restricted is None:
        return Check(name="GPU metrics", ok=False, says="not available, because no NVIDIA driver is loaded")
    says = "root only, and this user is root" if restricted else "all users"
    return Check(name="GPU metrics", ok=True, says=f"the driver allows GPU counters for {says}")
