"""A run on disk of any length, by the product's own sums and records: what a training of some days would leave."""

from __future__ import annotations

from pathlib import Path

from llmtop.instrument.run_log.sums import Sums
from llmtop.recording.members import pack
from llmtop.runs import folder, records

STEP_SECONDS = 5.0
SLOW_FROM, SLOW_UNTIL = 0.6, 0.7
"""Shares of the run between which half of each step waits for data."""
LAST_SECONDS = 60.0
PID = 1 << 22
"""Of the first rank: larger than that of any process (PID_MAX_LIMIT of Linux), whose /proc entry would be read."""
UUID = "GPU-00000000-0000-0000-0000-000000000000"


def write_run(runs: Path, end: float, hours: float, ranks: int = 1, *, with_gpu: bool = False) -> Path:
    """Write a run whose ranks were killed.

    Args:
        runs: folder of all runs.
        end: unix time of the last step.
        hours: how long it ran.
        ranks: how many.
        with_gpu: whether a monitor watched its second half, and saw a GPU at 70 % and an alert.

    Returns:
        The folder of the run.
    """
    begin = end - hours * 3600
    where = runs / folder.RunKey("id", "night", "", "").folder_name
    where.mkdir(parents=True, mode=0o700)
    for rank in range(ranks):
        _write_rank(where, rank, ranks, begin, end, UUID if with_gpu else None)
    if with_gpu:
        _write_node(where, (begin + end) / 2, end)
    return where


def _write_rank(where: Path, rank: int, ranks: int, begin: float, end: float, gpu: str | None) -> None:
    name = folder.FileName(rank, int(begin * 1000), PID + rank, f"{rank:08x}").text
    start = records.Start(
        source="id", run="night", program="train.py", command="python train.py", host="vm", boot="x",
        pid=PID + rank, ticks=1, rank=rank, world_size=ranks, gpu_uuid=gpu, at=begin, mono=0.0,
    )  # fmt: skip
    offset_ns = int(begin * 1e9)
    sums, number, minutes = Sums(0.0, begin), 0, int((end - begin) / 60)
    with (where / (name + folder.RUN)).open("wb") as file:
        file.write(_member([start], begin))
        for minute in range(minutes):
            slow = SLOW_FROM <= minute / minutes < SLOW_UNTIL
            rows = [
                _row(number + place, begin + 60 * minute + STEP_SECONDS * place, slow=slow) for place in range(12)
            ]
            number += len(rows)
            sums.add(rows, offset_ns)
            at = begin + 60.0 * (minute + 1)
            sums.now(60.0 * (minute + 1), at)
            found = sums.end_minute({"loss": 1 / (minute + 1)}, repeat_names=minute % 10 == 9)
            if minute % 10 == 9:
                found.append(sums.sums())
            file.write(_member(found, at))
        file.write(_member([sums.sums()], end))
    with (where / (name + folder.LAST[0])).open("wb") as file:
        file.write(_member([start, sums.sums()], end - LAST_SECONDS))
        for place in range(12):
            begun = end - LAST_SECONDS + STEP_SECONDS * place
            row = _row(number - 12 + place, begun, slow=False)
            steps = records.RecentSteps(first=number - 12 + place, steps=[row], mono_offset_ns=offset_ns)
            file.write(_member([steps], begun + STEP_SECONDS))


def _row(number: int, begun: float, *, slow: bool) -> records.StepRow:
    data = 2.5 if slow else 0.1
    ns = int(STEP_SECONDS * 1e9)
    phases = [("data", int(data * 1e9), None), ("forward", int((4.9 - data) * 1e9), None)]
    return number, int(begun * 1e9), ns - 1000, ns, 1000.0, 8.0, phases


def _write_node(where: Path, begin: float, end: float) -> None:
    name = folder.FileName(None, int(begin * 1000), 999, "0000abcd").text + folder.NODE
    with (where / name).open("wb") as file:
        alert = records.AlertSeen(
            at=begin + 60, id="hot", severity="critical", summary="GPU 0 is hot.", points=["GPU 0 is hot"],
            gpu=0, gpu_uuid=UUID, since=begin + 50,
        )  # fmt: skip
        gone = records.AlertSeen(at=begin + 300, id="hot", severity="critical", ended=True, gpu=0, gpu_uuid=UUID)
        file.write(_member([records.Watched(at=begin, monitor="record"), alert], begin))
        file.write(_member([gone], begin + 300))
        for minute in range(int((end - begin) / 60)):
            at = begin + 60.0 * (minute + 1)
            signals = {"util_pct": (70.0, 60.0, 80.0), "power_watts": (300.0, 290.0, 310.0)}
            one = records.GpuMinute(
                at=at, seconds=60.0, uuid=UUID, index=0, name="NVIDIA H200", samples=60, signals=signals,
                energy_joules=18_000.0,
            )  # fmt: skip
            file.write(_member([one, records.Watched(at=at, monitor="record")], at))


def _member(found: list[records.Record], at: float) -> bytes:
    return pack(records.lines_of(found), at, at, len(found))
