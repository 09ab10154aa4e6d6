"""Replays of the situations that the main screen must tell apart: which it is, since when, and what helps.

All were recorded on H100s, by `tests/gpu/check_situations.py`. `throttled` alone is made, of the healthy one, and
says so on its screen.
"""

from __future__ import annotations

import lzma
from pathlib import Path

from msgspec.structs import replace

from collectors.replay import ReplayFeed
from llmtop.hardware import clock_events
from llmtop.model.snapshot import Gpu, Snapshot, from_json
from llmtop.recording.reader_writer import Reader, Writer
from llmtop.rules.engine import Rules

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "situations"
NAMES = ("healthy", "starved", "launch_bound", "hung", "straggler", "checkpointing", "leaking", "throttled")
SIZES = ((120, 30), (80, 24))
MADE = "made of a GPU recorded at its power limit: heat, clocks and power changed"
_HOT_AFTER_SECONDS = 8.0
_HOT_CELSIUS, _HOT_CLOCK, _HOT_POWER = 88.0, 0.62, 0.6
"""Of a GPU that its own heat slows down; the last two are shares of what was recorded."""


def recorded(name: str) -> list[Snapshot]:
    """The snapshots of a situation, as they were recorded or made."""
    if name == "throttled":
        return _throttled(recorded("healthy"))
    with lzma.open(FOLDER / f"{name}.jsonl.xz") as file:
        return [from_json(line) for line in file]


def _throttled(found: list[Snapshot]) -> list[Snapshot]:
    hot_from = found[0].time + _HOT_AFTER_SECONDS
    return [
        replace(
            one,
            host=replace(one.host, notes=(*one.host.notes, MADE)),
            gpus=tuple(_hot(gpu) for gpu in one.gpus) if one.time >= hot_from else one.gpus,
        )
        for one in found
    ]


def _hot(gpu: Gpu) -> Gpu:
    return replace(
        gpu,
        temperature_c=_HOT_CELSIUS,
        sm_clock_mhz=None if gpu.sm_clock_mhz is None else round(gpu.sm_clock_mhz * _HOT_CLOCK),
        power_watts=None if gpu.power_watts is None else gpu.power_watts * _HOT_POWER,
        clock_event_reasons=(clock_events.HW_SLOWDOWN, clock_events.HW_THERMAL),
    )


def feed(name: str, folder: Path) -> ReplayFeed:
    """The replay of a situation, at its last frame; its recording is written into the folder."""
    path = folder / f"{name}.llmtop"
    found = recorded(name)
    writer = Writer(path, host=found[0].host.name, overwrite=True)
    for snapshot in found:
        writer.write(snapshot)
    writer.close()
    played = ReplayFeed(Reader(path), lambda: Rules().apply)
    played.seek(played.length)
    return played
