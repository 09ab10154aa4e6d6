"""Turn the measured series under tests/data/*/live into snapshots, as a monitor beside the run would see them.

A series is NAME.nvml.jsonl.gz, one sample of all GPUs a line, with NAME.steps.jsonl.gz or
NAME.rankN.steps.jsonl.gz beside it, one step a line. tests/data/README.md says where they come from.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmtop.hardware import clock_events
from llmtop.model.snapshot import Gpu, Host, Phase, Process, Rank, RankState, Snapshot, Step

DATA = Path(__file__).resolve().parents[1] / "data"
HOST = "h200"
MIB = 1024 * 1024


def names(folder: Path) -> list[str]:
    """The series in a folder."""
    return sorted(path.name.removesuffix(".nvml.jsonl.gz") for path in folder.glob("*.nvml.jsonl.gz"))


def load(
    folder: Path, name: str, *, interval: float = 0.0, ranks: bool = True, gpm: bool = True
) -> Iterator[Snapshot]:
    """Yield the series as snapshots at least `interval` seconds apart.

    Args:
        ranks: attach the trainings, if their steps were recorded; without, only GPUs and their processes are seen.
        gpm: with GPM's values; without, as on a GPU older than Hopper.
    """
    samples = _lines(folder / f"{name}.nvml.jsonl.gz")
    attached = _attached(folder, name) if ranks else []
    pids: list[int | None] = [None] * len(samples[0]["gpus"])
    due = samples[0]["t"]
    for sample in samples:
        for place, gpu in enumerate(sample["gpus"]):
            if gpu.get("procs"):
                pids[place] = gpu["procs"][0][0]
        if sample["t"] < due - 0.03:
            continue
        due = max(due + interval, sample["t"] + 0.5 * interval)
        yield Snapshot(
            time=sample["t"],
            host=Host(name=HOST),
            gpus=tuple(_gpu(place, gpu, sample["t"], gpm) for place, gpu in enumerate(sample["gpus"])),
            processes=tuple(
                Process(pid=pid, gpu_uuid=uuid(place)) for place, pid in enumerate(pids) if pid is not None
            ),
            ranks=tuple(
                one.at(sample["t"], pids[place] or 1000 + place, len(attached))
                for place, one in enumerate(attached)
            ),
        )


def uuid(place: int) -> str:
    """The UUID that the GPU at that place gets."""
    return f"GPU-{place:08x}"


def _lines(path: Path) -> list[Any]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def _gpu(place: int, raw: dict[str, Any], time: float, with_gpm: bool) -> Gpu:
    gpm = raw.get("gpm", {}) if with_gpm else {}

    def metric(key: str, scale: float = 1.0) -> float | None:
        value = gpm.get(key)
        return value * scale if isinstance(value, (int, float)) else None

    rx, tx = metric("PCIE_RX_PER_SEC", MIB), metric("PCIE_TX_PER_SEC", MIB)
    return Gpu(
        index=place,
        uuid=uuid(place),
        name="NVIDIA H200",
        util_pct=raw["util"],
        mem_util_pct=raw["memutil"],
        mem_used_bytes=raw["mem_used"],
        mem_total_bytes=150_754_820_096,
        power_watts=raw["power_mw"] / 1000,
        power_limit_watts=700.0,
        energy_joules=raw["energy_mj"] / 1000,
        temperature_c=raw["temp"],
        sm_clock_mhz=raw["sm_mhz"],
        sm_clock_max_mhz=1980,
        clock_event_reasons=clock_events.reason_names(raw["reasons"]),
        pcie_rx_bytes_per_s=raw["rx_kbs"] * 1024 if rx is None else rx,
        pcie_tx_bytes_per_s=raw["tx_kbs"] * 1024 if tx is None else tx,
        pcie_source="nvml" if rx is None else "gpm",
        pcie_gen=5,
        pcie_width=16,
        nvlink_rx_bytes_per_s=metric("NVLINK_TOTAL_RX_PER_SEC", MIB),
        nvlink_tx_bytes_per_s=metric("NVLINK_TOTAL_TX_PER_SEC", MIB),
        sm_active_pct=metric("SM_UTIL"),
        sm_occupancy_pct=metric("SM_OCCUPANCY"),
        tensor_active_pct=metric("ANY_TENSOR_UTIL"),
        dram_active_pct=metric("DRAM_BW_UTIL"),
        sampled_at=time,
    )


def _attached(folder: Path, name: str) -> list[_Attached]:
    single = folder / f"{name}.steps.jsonl.gz"
    several = sorted(folder.glob(f"{name}.rank*.steps.jsonl.gz"))
    return [_Attached(_lines(path), place) for place, path in enumerate([single] if single.exists() else several)]


class _Attached:
    """One training's steps, handed over as they finish."""

    def __init__(self, raw: list[Any], place: int) -> None:
        starts = [None, *(line["t"] for line in raw)]
        self._place = place
        self._steps = [
            Step(
                index=line["step"],
                started_at=line["t"],
                seconds=line["dur"],
                interval_seconds=None if before is None else line["t"] - before,
                phases=tuple(Phase(name=key, host_seconds=value) for key, value in line["phases"].items()),
                warmup=line["step"] <= 2,
            )
            for line, before in zip(raw, starts, strict=False)
        ]
        self._given = 0

    def at(self, time: float, pid: int, world: int) -> Rank:
        """The rank as it was at unix `time`; each step is new once."""
        done = self._given
        while done < len(self._steps) and _end(self._steps[done]) <= time:
            done += 1
        new, self._given = tuple(self._steps[self._given : done]), done
        recent = [step for step in self._steps[max(0, done - 20) : done] if not step.warmup]
        last = self._steps[done - 1] if done else None
        usual = statistics.median(step.seconds for step in recent) if recent else None
        state: RankState = "running"
        if last is not None and usual is not None and time - _end(last) > max(60.0, 5 * usual):
            state = "stalled"
        return Rank(
            pid=pid,
            host=HOST,
            rank=self._place if world > 1 else None,
            local_rank=self._place if world > 1 else None,
            world_size=world,
            gpu_uuid=uuid(self._place),
            command="python train.py",
            step=last.index if last else None,
            step_seconds=last.seconds if last else None,
            step_seconds_p50=usual,
            phases=last.phases if last else (),
            state=state,
            last_step_at=_end(last) if last else None,
            attached_at=self._steps[0].started_at - 0.1,
            new_steps=new,
        )


def _end(step: Step) -> float:
    return step.started_at + step.seconds
