"""GPU time per phase, and its idle part, from the boundaries of a timed step.

Between two boundaries the stream is busy, or idle, or both; events alone show which in three cases:

* The innermost phase is ``dataload``. It gives the GPU no work, so all the stream's time there is idle: the GPU
  had
  run dry and waited for the batch. (A loader that computes on this very stream would be taken for idle.)
* At the second boundary the stream still has work. Then the host is ahead, and the interval is busy but for the
  time until its first kernel arrived.
* The stream is drained at both boundaries: the host sets the pace. The GPU is busy for some of the interval and
  idle between kernels; how much of each, events cannot tell (launch-bound phases look like this). Counted as
  `host_paced`.

An interval that begins with work queued and ends drained (a sync call in it) counts as busy, though its tail is
idle while the host wakes up. So `idle_ns` is a lower bound, short by at most `host_paced_ns` and these tails;
where `host_paced_ns` is over `UNTOLD` of the step, `idle_ns` is None.

Whether the stream was drained is asked at each boundary (cudaStreamQuery). A kernel given a moment before the
boundary may still run then; so the two clocks are laid over each other at the drained boundaries, and one that the
GPU passed within `LAG_NS` of the host counts as drained too.
"""

from __future__ import annotations

from llmtop.instrument.gpu.clock import Timed
from llmtop.instrument.steps.phase_tree import STEP
from llmtop.naming.own_phases import DATALOAD
from llmtop.protocol import wire

UNTOLD = 0.05
LAG_NS = 30_000
"""A launch takes about 5 µs to arrive and a small kernel a few more."""
IDLE_PHASE = DATALOAD


def gpu_time(timed: Timed, names: list[str]) -> wire.GpuTime:
    """GPU times of one step.

    Args:
        timed: its boundaries.
        names: phase names by slot / 2.
    """
    drained = _drained_boundaries(timed)
    open_slots: list[tuple[int, int]] = []
    phases: dict[int, int] = {}
    idle_ns = host_paced_ns = 0
    for place, (slot, begins, now) in enumerate(zip(timed.slots, timed.begins, timed.gpu_ns, strict=True)):
        if place:
            span = max(0, now - timed.gpu_ns[place - 1])
            if open_slots and IDLE_PHASE in _name(open_slots[-1][0], names).split("/"):
                idle_ns += span
            elif drained[place - 1] and drained[place]:
                host_paced_ns += span
        if begins:
            open_slots.append((slot, now))
        elif open_slots and open_slots[-1][0] == slot:
            begun = open_slots.pop()[1]
            if slot != STEP:
                phases[slot] = phases.get(slot, 0) + max(0, now - begun)
    gpu_ns = max(0, timed.gpu_ns[-1])
    return wire.GpuTime(
        index=timed.step_index,
        gpu_ns=gpu_ns,
        idle_ns=idle_ns if host_paced_ns <= UNTOLD * gpu_ns else None,
        phases=[(_name(slot, names), ns) for slot, ns in sorted(phases.items())],
        host_paced_ns=host_paced_ns,
    )


def _name(slot: int, names: list[str]) -> str:
    return "" if slot == STEP else names[slot >> 1]


def _drained_boundaries(timed: Timed) -> list[bool]:
    lags = [gpu - host for gpu, host in zip(timed.gpu_ns, timed.host_ns, strict=True)]
    shortest = min((lag for lag, drained in zip(lags, timed.drained, strict=True) if drained), default=None)
    if shortest is None:
        return timed.drained
    return [drained or lag - shortest <= LAG_NS for lag, drained in zip(lags, timed.drained, strict=True)]
