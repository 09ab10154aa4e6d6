"""Part `export`: what `llmtop export` costs with all GPUs and a rank on each, and the training's step beside it.

The training stamps its own steps. In turns no exporter runs, and one that is fetched each second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.bench_exporter import fetch, processor_seconds
from tests.gpu.check_ranks import TRAINING
from tests.gpu.eight import judging
from tests.gpu.eight.beside import Watch, ranks_said, stepping, training
from tests.gpu.eight.setting import Case, Setting
from tests.gpu.rank_plants import PLANTED_AT
from tests.support.ports import free_port
from tests.support.processes import REPOSITORY

PAIRS = 4
BLOCK_SECONDS = 6.0
SETTLE_SECONDS = 4.0
"""An exporter starts, and asks the trainings for their history."""
QUIET_SECONDS = 1.0
TURN_SECONDS = 2 * BLOCK_SECONDS + SETTLE_SECONDS + QUIET_SECONDS


def cases(setting: Setting) -> Iterator[Case]:
    """One."""
    seconds = PAIRS * TURN_SECONDS + BLOCK_SECONDS + 35
    yield Case("export", "beside_a_training", seconds, lambda left: Exported(setting).run(left))


class Exported:
    """The blocks, and what was measured in them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.taken: list[tuple[str, float, float]] = []
        self.shares: list[float] = []
        self.memory: list[float] = []
        self.page = ""
        self.page_seconds: float | None = None

    def run(self, left: float) -> dict[str, Any]:
        """Run all; the row."""
        setting = self.setting
        with setting.scratch() as scratch:
            sockets, until, stamps = Path(scratch, "s"), Path(scratch, "until"), Path(scratch, "stamps")
            script = [TRAINING, "--kind", "ddp", "--plant", "nothing", "--backend", setting.backend]
            script += ["--seconds", "10000", "--until", str(until), "--stamps", str(stamps)]
            with training(setting, sockets, script) as ranks:
                watch = Watch(setting, sockets)
                try:
                    watch.until(stepping(setting.gpus, PLANTED_AT), left - 30, ranks)
                except RuntimeError as error:
                    return {"ok": False, "error": str(error), "ranks_said": ranks_said(setting)}
                finally:
                    watch.close()  # what it costs is in no block
                for _ in range(PAIRS):
                    self._without()
                    self._with(sockets)
                self._without()
                until.touch()
                ranks.communicate(timeout=60)
            times = json.loads(stamps.read_text()) if stamps.exists() else []
        step = judging.blocks(times, self.taken)
        core = sum(self.shares) / len(self.shares)
        series = counted(self.page)
        told = judging.export(step, core, series, setting.gpus)
        return told | {
            "core_pct_of_each": self.shares,
            "memory_mib": max(self.memory),
            "page_bytes": len(self.page),
            "page_seconds": self.page_seconds,
            "block_seconds": BLOCK_SECONDS,
            **setting.recordings.add("export", watch.file),
        }

    def _without(self) -> None:
        time.sleep(QUIET_SECONDS)
        begun = time.monotonic()
        time.sleep(BLOCK_SECONDS)
        self.taken.append(("off", begun, time.monotonic()))

    def _with(self, sockets: Path) -> None:
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "export", "--port", str(port), "--dcgm-exporter", "none"],
            env=self.setting.monitor(sockets), cwd=REPOSITORY, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stop = threading.Event()
        try:
            time.sleep(SETTLE_SECONDS)
            threading.Thread(target=fetch, args=(port, stop), daemon=True).start()
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            before, begun = processor_seconds(family), time.monotonic()
            time.sleep(BLOCK_SECONDS)
            ended = time.monotonic()
            self.taken.append(("on", begun, ended))
            self.shares.append(100 * (processor_seconds(family) - before) / (ended - begun))
            self.memory.append(sum(float(one.memory_full_info().pss) for one in family) / 2**20)
            stop.set()
            asked = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                self.page = answer.read().decode()
            self.page_seconds = time.monotonic() - asked
        finally:
            stop.set()
            process.kill()
            process.wait(10)


def counted(page: str) -> dict[str, int]:
    """How many GPUs and ranks a page of an exporter tells of, and how many series in all."""
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {
        "gpus": len({one.labels["UUID"] for one in samples if one.labels.get("UUID")}),
        "ranks": len([one for one in samples if one.name == "llmtop_rank_info"]),
        "all": len(samples),
    }
