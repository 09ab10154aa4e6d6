"""Notes of the report on the capture itself: missing data, excluded items, and reasons."""

from __future__ import annotations

from llmtop.analysis.steps.device_timeline import DeviceTimeline
from llmtop.analysis.steps.step_finder import ProcessSteps
from llmtop.format import counted, percent_text, pid_text
from llmtop.trace import intervals as iv
from llmtop.trace import model
from llmtop.trace.groups import is_among


def capture_notes(
    trace: model.Trace, timelines: list[DeviceTimeline], steps: dict[int, ProcessSteps]
) -> list[str]:
    """Return what a reader must know before the figures: missing data and excluded items.

    Args:
        trace: what was read of a capture.
        timelines: one for each process and GPU.
        steps: its whole steps, by pid.
    """
    notes = list(trace.notes)
    if not len(trace.ops):
        notes.append("the capture has no device activity: no kernel, copy or memset is in it")
    elif not is_among(trace.ops.kind, (model.KERNEL, model.GRAPH)).any():
        notes.append("the capture has copies or memsets but no kernel")
    if len(trace.ops) and not len(trace.calls):
        notes.append("the capture has no CUDA calls of the host: what caused a gap cannot be said")
    unlaunched = int((trace.launched_by < 0).sum())
    if len(trace.calls) and unlaunched:
        notes.append(
            f"{unlaunched} of {len(trace.ops)} pieces of device work have no launching call in the capture"
        )
    for timeline in timelines:
        where = f"GPU {timeline.device}, pid {pid_text(timeline.process)}"
        if timeline.graphs:
            notes.append(
                f"{where}: {counted(timeline.graphs, 'CUDA graph')} "
                "traced as a whole: their kernels are not known, and pauses within them count as "
                f"busy; nsys --cuda-graph-trace=node "
                "records them one by one"
            )
        if not timeline.counted:
            found_by = steps[timeline.process].why_none_on_device
            over = "the time from its first to its last activity"
            notes.append(
                f"{where}: no whole step on the device ({found_by}); "
                f"its shares are of {timeline.extent_text if timeline.begins_after else over}"
            )
        elif timeline.slow_first:
            notes.append(
                f"{where}: the first whole step is left out of the shares, "
                "it was slowed down by the start of the capture"
            )
    for rank in trace.ranks:
        present = {timeline.process for timeline in timelines if len(timeline.nccl)}
        if rank.world_size > 1 and len(present) == 1:
            notes.append(
                f"this is rank {rank.rank} of {rank.world_size}, alone: whether it waits for another rank or for "
                "the network cannot be said without the others' captures"
            )
    low, high = trace.window
    # nsys records its own start as well, seconds before the first event of the capture.
    overhead = iv.clip(iv.union(trace.overhead.start, trace.overhead.end), low, high).total
    if high > low and overhead > 0.01 * (high - low):
        notes.append(
            f"the profiler itself took {percent_text(100 * overhead / (high - low), 1)} of the capture's time"
        )
    return notes
