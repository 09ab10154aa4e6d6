"""The window: from the moment an engine records to the moment that enough whole steps, or seconds, have passed."""

from __future__ import annotations

import time
from collections.abc import Callable

from llmtop.capture.base.job import DEFAULT_SECONDS, CaptureJob
from llmtop.format import duration

POLL_SECONDS = 0.02
WRITE_SECONDS = 120.0
"""How long a training may take to write the file of a few steps once it has recorded; five took Kineto two
seconds, large models take longer."""
SPARE_STEPS = 1
"""Where a loader runs between the ranges that mark the steps, N whole steps lie between N + 1 ranges."""
SILENCE_SECONDS = 60.0
"""Time without a whole step (or three median steps, if that is longer) after which the window closes with the
steps it has: the training may be hung, and the capture shows where."""


def wait_window(job: CaptureJob, begin_ns: int, is_full: Callable[[], bool] = lambda: False) -> list[str]:
    """Wait until the window holds what the plan asks for.

    Args:
        job: whose plan counts steps or seconds. Without a training that reports steps, the wait is by the clock.
        begin_ns: unix ns; steps that began before are not counted. The training with the fewest whole steps
            counts.
        is_full: True: the engine records no more, so that waiting is useless.

    Returns:
        Notes, in sentences, on what the window does not hold.

    Raises:
        Cancelled: the person cancelled.
    """
    if job.plan.steps is None:
        return _wait_seconds(job, job.plan.seconds or 0.0, is_full)
    if not job.watch.publishing_pids:
        return [
            *_wait_seconds(job, seconds := recording_seconds(job), is_full),
            f"the process reports no steps, so the window is {duration(seconds)} long",
        ]
    return _wait_steps(job, begin_ns, job.plan.steps + SPARE_STEPS, is_full)


def recording_seconds(job: CaptureJob) -> float:
    """Return how long to record when steps were asked for and cannot be counted."""
    median = job.watch.median_seconds()
    steps = job.plan.steps or 1
    return DEFAULT_SECONDS if median is None else max((steps + 1 + SPARE_STEPS) * median, 0.1)


def _wait_seconds(job: CaptureJob, seconds: float, is_full: Callable[[], bool]) -> list[str]:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not is_full():
        if not job.is_alive:
            job.stopped_early = "the training ended"
            return ["the training ended within the window"]
        job.report_progress(f"{duration(seconds - left)} of {duration(seconds)}")
        job.sleep(min(left, 0.1))
    return []


def _wait_steps(job: CaptureJob, begin_ns: int, wanted: int, is_full: Callable[[], bool]) -> list[str]:
    done, last_at = 0, time.monotonic()
    patience = max(SILENCE_SECONDS, 3 * (job.watch.median_seconds() or 0.0))
    job.report_progress(steps=0)
    while done < wanted and not is_full():
        job.sleep(POLL_SECONDS)
        whole = job.watch.whole_step_count(begin_ns)
        if whole > done:
            done, last_at = whole, time.monotonic()
            job.report_progress(steps=min(done, wanted - SPARE_STEPS))
        elif not job.is_alive:
            job.stopped_early = "the training ended"
            return [f"the training ended within the window, after {done} whole steps"]
        elif time.monotonic() - last_at > patience:
            job.stopped_early = f"no step ended for {patience:.0f} s"
            return [f"no step ended for {patience:.0f} s: the window was closed after {done} whole steps"]
    return []
