"""Recordings MADE of what was measured of six programs that nobody wrote for llmtop, on one H100 (torch 2.11).

Measured, over 6 s at 4 Hz: the means of GPU-Util and SM activity, what CUDA events at the phases' boundaries said
of idle and host-paced time, the length of a step, and how busy the device was in truth (its busy time a step by
torch.profiler, over the step outside the profiler). MADE: everything else, above all how single samples scatter
around the means, how a step is divided into phases, the power, and for how much of the time the host waits in
calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from llmtop.model.snapshot import Cause, Gpu, Host, Phase, Process, Rank, Snapshot, Step

INTERVAL_SECONDS = 0.5
GPU = "GPU-00000000"
PID = 4711


class Program(NamedTuple):
    """What was measured of one program; `waits_pct` and `power_watts` were not."""

    busy_pct: float
    """The truth."""
    util_pct: float
    sm_active_pct: float
    idle_pct: float | None
    """By CUDA events."""
    host_paced_pct: float
    step_seconds: float
    waits_pct: float
    power_watts: float
    verdict: str | None
    """The alert that is right, judged from the captures; None where the GPU's own work is the limit."""


PROGRAMS = {
    "HF Trainer GPT-2": Program(86.5, 89.0, 80, 0.8, 1.6, 0.0737, 35, 480, "sync_bound"),
    "ResNet-50, batch 32": Program(37.4, 42.2, 28, None, 68, 0.0269, 2, 250, "launch_bound"),
    ".item() in every layer": Program(11.8, 17.2, 4, None, 95, 0.0423, 14, 140, "sync_bound"),
    "tiny model, unfused optimizer": Program(8.6, 16.2, 1, None, 100, 0.0788, 1, 125, "launch_bound"),
    "GPT fed a little late": Program(96.8, 91.5, 85, 0.0, 0.5, 0.0653, 40, 600, None),
    "ViT, batch 128": Program(100, 100, 88, 0.0, 0.0, 0.0523, 50, 640, None),
}


def stream(program: Program, seconds: float = 40.0, *, pids: tuple[int, ...] = (PID,)) -> Iterator[Snapshot]:
    """Snapshots as a monitor would have recorded them, without what newer versions make of them.

    Args:
        program: what was measured.
        seconds: how long it is watched.
        pids: the processes on its GPU.
    """
    chance, time, index = random.Random(1), 1000.0, 0
    while time < 1000.0 + seconds:
        steps = []
        while 1000.0 + (index + 1) * program.step_seconds <= time:
            steps.append(_step(program, index))
            index += 1
        yield Snapshot(
            time=time,
            monotonic=time,
            host=Host(name="made"),
            gpus=(_gpu(program, time, chance),),
            processes=tuple(Process(pid=pid, gpu_uuid=GPU) for pid in pids),
            ranks=(
                Rank(
                    pid=PID,
                    host="made",
                    gpu_uuid=GPU,
                    attached_at=900.0,
                    step=index - 1 if index else None,
                    last_step_at=time,
                    new_steps=tuple(steps),
                    gpu_wait_pct=program.waits_pct,
                    gpu_waits=(Cause(what="train.py:7 loss.item()", seconds=0.01),),
                ),
            ),
        )
        time += INTERVAL_SECONDS


def _gpu(program: Program, time: float, chance: random.Random) -> Gpu:
    spread = min(12.0, program.util_pct, (100.0 - program.util_pct) / 2)
    return Gpu(
        index=0,
        uuid=GPU,
        name="NVIDIA H100",
        util_pct=round(program.util_pct + chance.uniform(-spread, spread)),
        mem_util_pct=20.0,
        sm_active_pct=program.sm_active_pct * chance.uniform(0.95, 1.05),
        power_watts=program.power_watts,
        power_limit_watts=700.0,
        sampled_at=time,
    )


def _step(program: Program, index: int) -> Step:
    whole = program.step_seconds
    phases = {"dataload": 0.01, "forward": 0.37, "backward": 0.5, "optimizer": 0.12}
    timed = index % 5 == 0
    return Step(
        index=index,
        started_at=1000.0 + index * whole,
        seconds=whole,
        interval_seconds=whole if index else None,
        gpu_seconds=whole if timed else None,
        gpu_idle_seconds=whole * program.idle_pct / 100 if timed and program.idle_pct is not None else None,
        gpu_host_paced_seconds=whole * program.host_paced_pct / 100 if timed else None,
        phases=tuple(
            Phase(
                name=name,
                host_seconds=share * whole,
                gpu_seconds=(share if name != "dataload" else 0.0) * whole if timed else None,
            )
            for name, share in phases.items()
        ),
    )
