"""Part `capture`: windows of all ranks at one step, by torch.profiler and by nsys, of a training with a slow rank.

The last rank computes more (rank_training.py, extra_forward), so the merged report is to name it. nsys records all
ranks below one launcher in one window, and cannot begin at a step that is named: that it says so is part of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu import check_at_step
from tests.gpu.check_ranks import TRAINING
from tests.gpu.eight import judging
from tests.gpu.eight.beside import Watch, ranks_said, stepping, training
from tests.gpu.eight.setting import Case, Setting
from tests.gpu.rank_plants import PLANTED_AT
from tests.support.processes import REPOSITORY

STEPS = 5
ENGINES: dict[str, tuple[str, ...]] = {"torch.profiler": (), "nsys": ("--nsys",)}
AT_STEP = ("--at-step", "+20", "--ranks", "all")
QUIET_SECONDS = 5.0
LEAVES_SECONDS = 3.0
"""CUPTI leaves after a capture; those steps count as neither."""


def cases(setting: Setting) -> Iterator[Case]:
    """One an engine."""
    for engine in ENGINES:
        yield Case("capture", engine, 75.0, partial(_one, setting, engine))


def _one(setting: Setting, engine: str, left: float) -> dict[str, Any]:
    deadline = time.monotonic() + left
    with setting.scratch() as scratch:
        sockets = Path(scratch, "s")
        script = [TRAINING, "--kind", "ddp", "--plant", "extra_forward", "--backend", setting.backend]
        with training(setting, sockets, [*script, "--seconds", "10000"], ENGINES[engine]) as ranks:
            watch = Watch(setting, sockets)
            try:
                watch.until(stepping(setting.gpus, PLANTED_AT + 20), left - 30, ranks)
                time.sleep(QUIET_SECONDS)
                refused = _capture(setting, sockets, engine, AT_STEP, 30) if engine == "nsys" else None
                words = () if engine == "nsys" else AT_STEP
                begun = time.time()
                code, facts, said = _capture(setting, sockets, engine, words, deadline - time.monotonic() - 10)
                recorded_until = time.time()
                time.sleep(LEAVES_SECONDS + QUIET_SECONDS)
            except RuntimeError as error:
                return {"ok": False, "error": str(error), "ranks_said": ranks_said(setting)}
            finally:
                watch.close()
        row: dict[str, Any] = {"exit_code": code, "said": said}
        if refused is not None:
            row["at_step_refused"] = {"exit_code": refused[0], "said": refused[2]}
        if facts is None:
            return row | {"ok": False, "ranks_said": ranks_said(setting)}
        row |= judging.capture(facts, setting.gpus, STEPS, setting.gpus - 1, setting.real)
        row["steps"] = judging.pauses(judging.intervals(watch.snapshots), begun, recorded_until, LEAVES_SECONDS)
        if engine == "torch.profiler" and row["whole"]:
            folder = Path(facts["folder"])
            row["apart"] = [check_at_step.apart(folder, setting.backend, one) for one in range(1, setting.gpus)]
    row["ok"] = row["ok"] and (row["steps"]["ok"] or not setting.real)
    return row | setting.recordings.add(f"capture_{engine}", watch.file)


def _capture(
    setting: Setting, sockets: Path, engine: str, words: tuple[str, ...], seconds: float
) -> tuple[int | None, dict[str, Any] | None, str]:
    """Exit code (None: not in time), facts, and what it said."""
    command = [sys.executable, "-m", "llmtop", "capture", "--json", "--engine", engine, "--steps", str(STEPS)]
    try:
        done = subprocess.run(
            [*command, "--out", str(setting.folder / "captures"), *words],
            env=setting.monitor(sockets), cwd=REPOSITORY, capture_output=True, text=True,
            timeout=max(5.0, seconds), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, None, f"not within {seconds:.0f} s"
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr[-600:]
