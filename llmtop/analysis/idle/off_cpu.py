"""When no launching thread had a CPU, and why: then nothing was being launched, however slow launching is."""

from __future__ import annotations

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import is_among
from llmtop.trace.intervals import Spans

OFF_CPU_CAUSES = {
    "preempted": "the launching thread was preempted: it lost its CPU in no call that waits",
    "sleeping": "the launching thread slept",
    "waiting": "the launching thread waited, off the CPU",
    "off_cpu": "the launching thread was off the CPU; the capture does not show why",
}
"""Causes of idle time, in the order in which they are tried where several threads launch."""
OFF_CPU_FIX = {
    "preempted": (
        "Give the training more CPU time: raise the container's CPU limit, bind each rank to cores of its own "
        "(numactl, taskset), and lower OMP_NUM_THREADS and the number of workers to the cores that are there."
    ),
    "sleeping": (
        "The thread that launches kernels calls a sleep: find it with the Python stacks (time.sleep, a loop that "
        "polls, a rate limit) and remove it from the step."
    ),
    "waiting": (
        "The thread that launches kernels waits for another thread or process: find the place with the Python "
        "stacks (a lock, a queue, a socket, a file) and move it out of the step or into a thread of its own."
    ),
    "off_cpu": (
        "Record why the thread that launches kernels had no CPU: nsys profile --trace=cuda,nvtx,osrt "
        "--cpuctxsw=process-tree; and look at the load of the machine."
    ),
}
"""Advice for each reason."""
_WHY = {
    "preempted": model.PREEMPTED,
    "sleeping": model.SLEEPING,
    "waiting": model.WAITING,
    "off_cpu": 0,
}


def off_cpu_spans(timeline: DeviceTimeline) -> dict[str, Spans]:
    """Return when all launching threads of a timeline were off the CPU, by cause; empty where that is not known.

    Of several threads (autograd's waits while the script's launches) all have to be off. The stretch is called
    preempted or sleeping where one of them was.
    """
    table = timeline.trace.off_cpu
    if not len(table):
        return {}
    mine = table.select((table.process == timeline.process) & is_among(table.thread, timeline.launchers))
    together: Spans | None = None
    for thread in timeline.launchers.tolist():
        own = mine.select(mine.thread == thread)
        spans = iv.union(own.start, own.end)
        together = spans if together is None else iv.intersection(together, spans)
    if together is None or not len(together):
        return {}
    found = {}
    for cause, why in _WHY.items():
        own = mine.select(mine.why == why)
        found[cause] = iv.intersection(together, iv.union(own.start, own.end))
    return found
