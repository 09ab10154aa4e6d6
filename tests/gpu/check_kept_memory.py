"""Planted leaks of GPU memory and fragmentation on a real GPU: the phase that is named, as JSON lines.

    python -m tests.gpu.check_kept_memory [--seconds 58]

Six trainings on one GPU with one monitor, first those that leak and then the others: outputs kept in a list by
the forward pass (under `llmtop run` and by hand), tensors kept by the optimizer and outside of phases, temporary
tensors of ever larger sizes (fragmentation alone), and no plant. The periods of the rule (16 s and 160 s of
growth) are the monitor's own; of fragmentation, which takes 160 s, the published figures are judged as if they
had come ten times more slowly. Each leak's phase and its bytes per step (within a tenth) must be named, and the
others must have no phase.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from llmtop.model.snapshot import Alert
from llmtop.rules.engine import Rules
from tests.support.processes import REPOSITORY, environment
from tests.support.snapshots import gpu, rank, snapshot

TRAINING: Final = """
import json, statistics, sys, time
import torch
from torch import nn
way = sys.argv[1]
total = torch.cuda.get_device_properties(0).total_memory
leak = -(-total // 2400 // 2097152) * 2097152  # ten steps a second fill the GPU within five minutes
kept = []

class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        if way == "optimizer":
            kept.append(torch.empty(leak, dtype=torch.uint8, device="cuda"))

class Model(nn.Sequential):
    def forward(self, batch):
        out = super().forward(batch)
        if way.startswith("forward"):
            kept.append(torch.empty(leak, dtype=torch.uint8, device="cuda"))
        if way == "fragmented":
            torch.empty((32 << 20) + (step // 4 << 21), dtype=torch.uint8, device="cuda")
        return out

model = Model(*[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.GELU())]).cuda()
optimizer = Optimizer(model.parameters(), lr=1e-3)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(100_000, 1024)), batch_size=64)
if way == "forward by hand":
    import llmtop
    phase, whole = llmtop.phase, llmtop.step
else:
    import contextlib
    phase, whole = (lambda name: contextlib.nullcontext()), contextlib.nullcontext
step, pause = 0, 0.05 if way == "fragmented" else 0.1
while True:
    for (batch,) in data:
        begun = time.monotonic()
        with whole():
            with phase("forward"):
                out = model(batch.cuda())
            loss = out.square().mean()
            with phase("backward"):
                loss.backward()
            with phase("optimizer"):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if way == "outside":
                kept.append(torch.empty(leak, dtype=torch.uint8, device="cuda"))
        step += 1
        if step == 50:
            times = []
            for call in (torch.cuda.memory_snapshot, torch.cuda.memory_stats) * 5:
                at = time.perf_counter()
                call()
                times.append(1e6 * (time.perf_counter() - at))
            blocks = sum(len(one["blocks"]) for one in torch.cuda.memory_snapshot())
            print(json.dumps({"leak": leak, "total": total, "blocks": blocks,
                              "snapshot_us": statistics.median(times[::2]),
                              "stats_us": statistics.median(times[1::2])}), flush=True)
        time.sleep(max(0.0, begun + pause - time.monotonic()))
"""
PHASES: Final = {
    "forward": "forward",
    "forward by hand": "forward",
    "optimizer": "optimizer",
    "outside": "code outside of phases",
    "fragmented": None,
    "healthy": None,
}
"""Plant -> the phase that the alert must name."""
STRETCH: Final = 10.0
"""Steps of fragmentation come ten times as fast as the rule's periods."""


class Watched:
    """One training, and what was published of it."""

    def __init__(self, way: str, folder: Path, variables: dict[str, str]) -> None:
        self.way = way
        script = folder / "train.py"
        script.write_text(TRAINING)
        command = [sys.executable, str(script), way]
        if way != "forward by hand":
            command = [sys.executable, "-m", "llmtop", "run", "-q", "--", *command]
        self.log = (folder / f"{way.replace(' ', '_')}.log").open("w+")
        self.process = subprocess.Popen(
            command, env=variables, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.printed: dict[str, Any] = {}
        threading.Thread(target=self._read, daemon=True).start()
        self.figures: list[tuple[float, dict[str, Any]]] = []
        """Time and rank of each snapshot."""
        self.alerts: dict[str, dict[str, Any]] = {}
        self.named_after: float | None = None
        """Seconds from the first snapshot with a step to the alert with a phase."""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.printed = json.loads(line)

    def take(self, moment: dict[str, Any]) -> None:
        """Take what a snapshot has of this training."""
        mine = [one for one in moment["ranks"] if one["pid"] == self.process.pid and one.get("step") is not None]
        if not mine:
            return
        self.figures.append((moment["time"], mine[0]))
        for alert in moment["alerts"]:
            if alert.get("pid") == self.process.pid:
                self.alerts[alert["id"]] = alert
                if "growing_phase" in alert["evidence"] and self.named_after is None:
                    self.named_after = moment["time"] - self.figures[0][0]

    @property
    def is_done(self) -> bool:
        """Return True if all that is expected of a leak has come."""
        return PHASES[self.way] is None or self.named_after is not None

    def verdict(self) -> dict[str, Any]:
        """Return what is printed of this training."""
        leak = self.printed.get("leak")
        alert = self.alerts.get("memory_growth")
        kept = [one["memory_kept_bytes"] for _, one in self.figures if one.get("memory_kept_bytes")]
        row: dict[str, Any] = {
            "check": self.way, **self.printed, "snapshots": len(self.figures), "seconds": self.named_after,
            "kept": kept[-1] if kept else None, "alert": alert and alert["summary"],
        }  # fmt: skip
        evidence = alert["evidence"] if alert else {}
        if PHASES[self.way] is not None:
            size = evidence.get("kept_bytes_per_step", 0)
            row["ok"] = (
                leak is not None
                and evidence.get("growing_phase") == PHASES[self.way]
                and abs(size - leak) <= 0.1 * leak
            )
        elif self.way == "fragmented":
            found = self._judged_slowly()
            row["alert"] = found.summary if found else None
            row["ok"] = found is not None and "fragmentation" in found.summary and not kept
        else:
            row["ok"] = bool(self.figures) and alert is None and not kept
        if not row["ok"]:
            self.log.seek(0)
            row["stderr"] = self.log.read()[-1000:]
        return row

    def _judged_slowly(self) -> Alert | None:
        """Return the alert on the published figures, with the time between them stretched."""
        rules, total = Rules(), self.printed.get("total")
        board = gpu(mem_total_bytes=total, mem_used_bytes=None)
        found: list[Alert] = []
        for place, (at, one) in enumerate(self.figures):
            names = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes", "step")
            seen = rank(gpu_uuid=board.uuid, warmup_steps=3, **{name: one.get(name) for name in names})
            now = 1000.0 + STRETCH * (at - self.figures[0][0])
            # Three samples make a period; the figures between two snapshots are not known.
            for part in range(int(STRETCH)):
                alerts = rules.apply(snapshot(now + part, gpus=(board,), ranks=(seen,))).alerts
                found += [alert for alert in alerts if alert.id == "memory_growth"] if place else []
        return found[-1] if found else None


def _watch(ways: list[str], seconds: float) -> list[dict[str, Any]]:
    """Run trainings at the same time for at most that long, and judge them."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        folder = Path(name)
        variables = environment(LLMTOP_DIR=str(folder / "sockets"), OMP_NUM_THREADS="2")
        watched = [Watched(way, folder, variables) for way in ways]
        monitor = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "--json", "-i", "1"], env=variables, cwd=REPOSITORY,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert monitor.stdout is not None
            for line in monitor.stdout:  # a line a second, with or without trainings
                moment = json.loads(line)
                for one in watched:
                    one.take(moment)
                    if one.is_done and PHASES[one.way] is not None:
                        one.process.kill()  # its memory is for the others
                if time.monotonic() > until or all(one.process.poll() is not None for one in watched):
                    break
        finally:
            for process in (monitor, *(one.process for one in watched)):
                process.kill()
                process.wait(60)
        return [one.verdict() for one in watched]


def main() -> int:
    """Watch both groups, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=58.0)
    seconds = parser.parse_args().seconds
    leaks = [way for way, phase in PHASES.items() if phase is not None]
    rows = [row for ways in (leaks, [way for way in PHASES if way not in leaks]) for row in _watch(ways, seconds)]
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
