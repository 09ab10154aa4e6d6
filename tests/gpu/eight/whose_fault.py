"""Parts `ranks` and `hang`: which rank holds the others up, and which one hangs, of as many as there are GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.gpu import check_hang, check_ranks
from tests.gpu.eight.setting import Case, Setting

ORDER = ("communication", "extra_forward", "sleep", "slow_data", "computing_neighbour", "neighbour", "nothing")
"""First each of these once, under FSDP2 and DDP in turns, then under the other one."""
KINDS = ("fsdp2", "ddp")
INTERVAL = 0.25
TRAIN_SECONDS = 9.0
"""After its first steps; it goes on until 60 steps after the plant."""
PATIENCE_SECONDS = 70.0
"""For the start and the end of one; torch was imported before."""
SILENT_SECONDS = 14.0
"""Longer where nobody is to be accused."""


def straggling(setting: Setting) -> Iterator[Case]:
    """The cases of `ranks`."""
    for turn in range(2):
        for number, plant in enumerate(ORDER):
            kind = KINDS[(number + turn) % 2]
            seconds = SILENT_SECONDS if plant in check_ranks.SILENT else TRAIN_SECONDS
            yield Case("ranks", f"{kind}_{plant}", seconds + 26, partial(_one, setting, kind, plant, seconds))


def _one(setting: Setting, kind: str, plant: str, seconds: float, left: float) -> dict[str, Any]:
    file = setting.folder / f"{kind}_{plant}.llmtop"
    patience = max(20.0, min(PATIENCE_SECONDS, left - seconds))
    said = check_ranks.run(kind, plant, seconds, setting.backend, INTERVAL, setting.gpus, patience, file)
    said["line"] = check_ranks.line(said)
    said["named_right"] = said["ok"]
    said["ok"] = said["ok"] and said["in_time"]
    return said | setting.recordings.add(f"{kind}_{plant}", file)


def hanging(setting: Setting) -> Iterator[Case]:
    """The cases of `hang`: of an attached training, and of one that only NCCL's RAS knows."""
    for attached in (True, False) if setting.real else (True,):
        name = "attached" if attached else "unattached"
        yield Case("hang", name, 40.0, partial(_hang, setting, attached, name))


def _hang(setting: Setting, attached: bool, name: str, left: float) -> dict[str, Any]:
    file = setting.folder / f"hang_{name}.llmtop"
    found = check_hang.hang(setting.gpus, setting.backend, attached, min(check_hang.PATIENCE, left), file)
    return found | setting.recordings.add(f"hang_{name}", file)
