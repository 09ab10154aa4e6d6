"""Made-up moments of machines, with the figures that real ones showed: for pictures and for tests of the screen.

A scene is a list of snapshots, one a second, the last of which is to be looked at. The same arguments give the
same scene.
"""

from __future__ import annotations

import functools
import random
from typing import Any

from llmtop.model.snapshot import Alert, Gpu, Host, Phase, Process, Rank, Snapshot, Step

GIB = 2**30
MIB = 2**20
START = 1_780_000_000.0


def uuid(index: int) -> str:
    """The UUID of a scene's GPU."""
    return f"GPU-{index:08x}-5a5a-4d4d-9c9c-0123456789ab"


# What H200s showed, as (mean, spread): a GPT training, and one thread that spins in a kernel.
_TRAINING: dict[str, tuple[float, float]] = {
    "util_pct": (99, 1.5),
    "mem_util_pct": (44, 5),
    "power_watts": (671, 22),
    "temperature_c": (63, 0.7),
    "sm_clock_mhz": (1755, 45),
    "pcie_rx_bytes_per_s": (30 * MIB, 8 * MIB),
    "pcie_tx_bytes_per_s": (12 * MIB, 3 * MIB),
    "nvlink_rx_bytes_per_s": (52 * GIB, 5 * GIB),
    "nvlink_tx_bytes_per_s": (51 * GIB, 5 * GIB),
    "sm_active_pct": (88, 5),
    "sm_occupancy_pct": (31, 2),
    "tensor_active_pct": (47, 6),
    "dram_active_pct": (36, 4),
}
_SPINNING: dict[str, tuple[float, float]] = {
    "util_pct": (100, 0),
    "mem_util_pct": (0, 0),
    "power_watts": (122, 1.2),
    "temperature_c": (36, 0.4),
    "sm_clock_mhz": (1980, 0),
    "pcie_rx_bytes_per_s": (3 * MIB, 0.6 * MIB),
    "pcie_tx_bytes_per_s": (1 * MIB, 0.2 * MIB),
    "nvlink_rx_bytes_per_s": (0, 0),
    "nvlink_tx_bytes_per_s": (0, 0),
    "sm_active_pct": (0.8, 0.2),
    "sm_occupancy_pct": (0.2, 0.1),
    "tensor_active_pct": (0, 0),
    "dram_active_pct": (0, 0),
}
_GPM = ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
_NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")


def _gpu(index: int, dice: random.Random, *, spinning: bool, gpm: bool, name: str) -> Gpu:
    figures: dict[str, Any] = {
        key: max(dice.gauss(mean, spread), 0.0)
        for key, (mean, spread) in (_SPINNING if spinning else _TRAINING).items()
    }
    figures = {key: min(value, 100.0) if key.endswith("_pct") else value for key, value in figures.items()}
    if not gpm:
        figures |= dict.fromkeys((*_GPM, *_NVLINK))
    return Gpu(
        index=index,
        uuid=uuid(index),
        name=name,
        mem_used_bytes=int((113 if not spinning else 79.6) * GIB),
        mem_total_bytes=int(140.4 * GIB),
        power_limit_watts=700.0,
        sm_clock_max_mhz=1980.0,
        clock_event_reasons=() if spinning else ("sw_power_cap",),
        pcie_source="gpm" if gpm else "nvml",
        pcie_gen=5,
        pcie_width=16,
        **figures,
    )


_PHASES = (
    ("dataload", 0.061, 0.0006),
    ("h2d", 0.004, 0.0011),
    ("forward", 0.018, 0.0332),
    ("forward/attention", 0.007, 0.0124),
    ("backward", 0.022, 0.0618),
    ("optimizer", 0.005, 0.0123),
)


def _phases(dice: random.Random, slow: float, *, gpus: bool) -> tuple[Phase, ...]:
    return tuple(
        Phase(
            name=name,
            host_seconds=host * dice.gauss(1, 0.01) * (slow if name == "forward" else 1),
            gpu_seconds=gpu * dice.gauss(1, 0.01) if gpus else None,
        )
        for name, host, gpu in _PHASES
    )


_ON_A_GPU: dict[str, Any] = {
    "gpu_idle_pct": 1.3,
    "gpu_busy_pct": 98.7,
    "gpu_busy_source": "events",
    "memory_allocated_bytes": int(96.2 * GIB),
    "memory_reserved_bytes": int(108.4 * GIB),
    "mfu_pct": 41.3,
}
"""Figures of a training that only one on a GPU has."""


def _rank(index: int, second: int, dice: random.Random, *, world: int, slow: float, gpus: bool) -> Rank:
    steps = []
    for number in range(9):
        seconds = 0.1105 * dice.gauss(1, 0.012) * (1.55 if dice.random() < 0.012 else 1)
        started = START + second - 1 + number * 0.111
        steps.append(
            Step(index=second * 9 + number, started_at=started, seconds=seconds, interval_seconds=seconds)
        )
    step = second * 9 + 8
    known = _ON_A_GPU | {"gpu_uuid": uuid(index)} if gpus else {}
    return Rank(
        pid=41_200 + index,
        host="gpu-node-07",
        rank=index,
        local_rank=index,
        world_size=world,
        command="train_gpt.py --config 7b.yaml",
        step=step,
        step_seconds=steps[-1].seconds,
        step_seconds_p50=0.1106,
        step_seconds_p95=0.1134,
        step_seconds_p99=0.1702,
        tokens_per_s=147_800 + dice.gauss(0, 600),
        steps_per_s=9.02,
        phases=_phases(dice, slow, gpus=gpus),
        total_steps=10_000,
        eta_seconds=(10_000 - step) * 0.111,
        metrics={"loss": 2.3 + 3.1 / (1 + step / 300) + dice.gauss(0, 0.02), "lr": 3.0e-4, "grad_norm": 0.84},
        new_steps=tuple(steps),
        capturable=("torch_profiler", "py_spy"),
        **known,
    )


def low_power(index: int, seconds: float, now: float) -> Alert:
    """The alert that this program exists for."""
    return Alert(
        id="low_power_full_util",
        severity="critical",
        gpu=uuid(index),
        since=now - seconds,
        summary="The GPU reports 100 % utilization but draws 122 of 700 W, and 0.8 % of its SMs are active: "
        "a kernel is spinning or stuck.",
        evidence={"util_pct": 100.0, "power_watts": 122.0, "power_limit_watts": 700.0, "sm_active_pct": 0.8},
        next="press s for the Python stacks of its process",
        points=("122 of 700 W at 100 % util", "a kernel is spinning or stuck", "SM active 0.8 %"),
    )


def straggler(pid: int, index: int, seconds: float, now: float) -> Alert:
    """One rank holds the others up."""
    return Alert(
        id="straggler",
        severity="warning",
        gpu=uuid(index),
        pid=pid,
        since=now - seconds,
        summary=f"Rank {index} is the straggler: forward takes 40 % longer than on the other ranks.",
        evidence={"excess_pct": 40.0},
        next="press c to capture it",
        points=("forward 40 % longer than on the other ranks", "the other ranks wait for it"),
    )


def scene(
    *,
    gpus: int = 8,
    ranks: int | None = None,
    spinning: tuple[int, ...] = (),
    slow_rank: int | None = None,
    seconds: int = 120,
    gpm: bool = True,
    name: str = "NVIDIA H200",
    notes: tuple[str, ...] = (),
    source: str = "live",
) -> list[Snapshot]:
    """A machine over `seconds`; GPUs in `spinning` go bad 75 s before the end.

    Args:
        ranks: attached training processes, one a GPU; as many as GPUs if not given.
        slow_rank: computes longer than the others.
    """
    made = _moments(
        gpus=gpus,
        ranks=ranks,
        spinning=spinning,
        slow_rank=slow_rank,
        seconds=seconds,
        gpm=gpm,
        name=name,
        notes=notes,
        source=source,
    )
    return list(made)


@functools.lru_cache(maxsize=32)  # hundreds of tests ask for the same few
def _moments(
    *,
    gpus: int,
    ranks: int | None,
    spinning: tuple[int, ...],
    slow_rank: int | None,
    seconds: int,
    gpm: bool,
    name: str,
    notes: tuple[str, ...],
    source: str,
) -> tuple[Snapshot, ...]:
    dice = random.Random(7)
    world = gpus if ranks is None else ranks
    moments = []
    for second in range(seconds):
        now = START + second
        bad = second - (seconds - 75)
        alerts = [low_power(i, float(bad), now) for i in spinning if bad > 5]
        if slow_rank is not None and second > 20:
            alerts.append(straggler(41_200 + slow_rank, slow_rank, second - 20.0, now))
        moments.append(
            Snapshot(
                time=now,
                source="replay" if source == "replay" else "live",
                host=_host(dice, notes, gpus),
                gpus=tuple(
                    _gpu(i, dice, spinning=i in spinning and bad > 0, gpm=gpm, name=name) for i in range(gpus)
                ),
                processes=tuple(_process(i, dice) for i in range(gpus)),
                ranks=tuple(
                    _rank(i, second, dice, world=world, slow=1.9 if i == slow_rank else 1.0, gpus=i < gpus)
                    for i in range(world)
                ),
                alerts=tuple(alerts),
            )
        )
    return tuple(moments)


def _host(dice: random.Random, notes: tuple[str, ...], gpus: int) -> Host:
    return Host(
        name="gpu-node-07",
        cpu_pct=min(max(dice.gauss(34, 6), 0), 100),
        load_1m=48.2,
        memory_used_bytes=int(412 * GIB),
        memory_total_bytes=2015 * GIB,
        disk_read_bytes_per_s=dice.gauss(310, 30) * MIB,
        disk_write_bytes_per_s=dice.gauss(8, 2) * MIB,
        net_rx_bytes_per_s=dice.gauss(2.1, 0.1) * MIB,
        net_tx_bytes_per_s=dice.gauss(1.4, 0.1) * MIB,
        driver_version="580.159.04" if gpus else None,
        cuda_version="13.0" if gpus else None,
        notes=notes,
    )


def _process(index: int, dice: random.Random) -> Process:
    return Process(
        pid=41_200 + index,
        gpu_uuid=uuid(index),
        gpu_mem_bytes=int(112.6 * GIB),
        gpu_sm_pct=min(dice.gauss(96, 2), 100),
        user="mira",
        command="python train_gpt.py --config 7b.yaml",
        cpu_pct=dice.gauss(104, 3),
        rss_bytes=int(9.4 * GIB),
        threads=62,
        io_read_bytes_per_s=dice.gauss(38, 4) * MIB,
        io_write_bytes_per_s=0.0,
        state="running",
        started_at=START - 4000.0,
    )
