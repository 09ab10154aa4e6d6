"""What the real monitor says about real trainings with known bottlenecks: python -m tests.gpu.check_monitor

On one GPU: healthy, starved by a known share, spinning. On two: equal ranks, one slower by 30 %, one that hangs.
Prints one JSON object a case with the alerts, when they came (in seconds and steps after the plant), and the
figures they gave; `ok` says whether that is what was planted. Exits 1 when one is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import REPOSITORY, environment

TRAINING = str(Path(__file__).with_name("planted_training.py"))


@dataclass(frozen=True)
class Case:
    """A plant, the alerts it must raise, those it must not, and how it is started."""

    name: str
    gpus: int
    arguments: tuple[str, ...]
    must: frozenset[str] = frozenset()
    must_not: frozenset[str] = frozenset()
    endless: bool = False


PATIENCE_S = 180
"""For a training and all that is before it: on a fresh machine the first import of torch alone takes a minute."""
BAD = frozenset(
    {"input_bound", "straggler", "low_power_full_util", "stalled", "launch_bound", "sync_bound", "h2d_bound"}
)
CASES = (
    Case("healthy", 1, ("--plant", "none", "--planted", "250"), must_not=BAD),
    Case("starved_30", 1, ("--plant", "starve", "--share", "0.3", "--planted", "120"), frozenset({"input_bound"})),
    Case("starved_60", 1, ("--plant", "starve", "--share", "0.6", "--planted", "90"), frozenset({"input_bound"})),
    Case("spin", 1, ("--plant", "spin", "--planted", "12"), frozenset({"low_power_full_util"})),
    Case("equal", 2, ("--plant", "none", "--planted", "250"), must_not=BAD),
    Case("slow_rank", 2, ("--plant", "slow-rank", "--share", "0.3", "--planted", "150"), frozenset({"straggler"})),
    Case("hang", 2, ("--plant", "hang", "--planted", "200"), frozenset({"low_power_full_util"}), endless=True),
)


def watch(case: Case, keep: Path | None) -> dict[str, Any]:
    """Run the training and the monitor side by side until the training ends."""
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, tempfile.TemporaryFile("w+") as errors:
        environ = environment(LLMTOP_DIR=directory, PYTHONFAULTHANDLER="1")
        launcher = [sys.executable]
        if case.gpus > 1:
            launcher += [
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                str(case.gpus),
                "--master-port",
                "29533",
            ]
        training = subprocess.Popen(
            [*launcher, TRAINING, *case.arguments], env=environ, cwd=REPOSITORY, stdout=subprocess.PIPE,
            stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
        command = [sys.executable, "-m", "llmtop", "--json", "--interval", "0.25"]
        if keep:
            command += ["--record", str(keep / f"{case.name}.llmtop.gz")]
        monitor = subprocess.Popen(command, env=environ, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        try:
            snapshots = collect(training, monitor, case)
            ended = {"training": training.poll(), "monitor": monitor.poll()}
            training.terminate()
            assert training.stdout is not None
            planted = json.loads(training.stdout.readline().strip() or "{}")
            verdict = judge(case, planted, snapshots)
            if not verdict["ranks"]:
                errors.seek(0)
                verdict["training_said"] = errors.read()[-2000:]
                verdict["ended"] = ended
            return verdict
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(training.pid, signal.SIGKILL)
            monitor.terminate()
            monitor.wait(10)


def collect(training: Any, monitor: Any, case: Case) -> list[dict[str, Any]]:
    """All snapshots until the training or the monitor ends; of a training that never ends, until it was told."""
    snapshots, deadline, left = [], time.monotonic() + PATIENCE_S, set(case.must)
    for line in monitor.stdout:
        snapshots.append(json.loads(line))
        left -= {alert["id"] for alert in snapshots[-1]["alerts"]}
        if training.poll() is not None or time.monotonic() > deadline or (case.endless and not left):
            break
    return snapshots


def judge(case: Case, planted: dict[str, Any], snapshots: list[dict[str, Any]]) -> dict[str, Any]:
    """What was raised, when, and whether that is right."""
    raised: dict[str, Any] = {}
    for snapshot in snapshots:
        steps = {rank["pid"]: rank["step"] for rank in snapshot["ranks"]}
        for alert in snapshot["alerts"]:
            key = f"{alert['id']}:{alert['gpu'] or alert['pid']}"
            if key not in raised:
                own = steps.get(alert["pid"]) if alert["pid"] else min(steps.values(), default=None)
                raised[key] = {
                    "id": alert["id"],
                    "severity": alert["severity"],
                    "rank": next((r["rank"] for r in snapshot["ranks"] if r["pid"] == alert["pid"]), None),
                    "after_s": round(snapshot["time"] - planted.get("planted_at", snapshot["time"]), 2),
                    "after_steps": None if own is None else own - planted.get("step", 0),
                    "summary": alert["summary"],
                }
            raised[key]["evidence"] = alert["evidence"]
    ids = {entry["id"] for entry in raised.values()}
    last = [s for s in snapshots if s["ranks"]]
    middle = last[int(len(last) * 0.9)]["ranks"] if last else []
    figures = ("rank", "step", "step_seconds_p50", "gpu_idle_pct", "tokens_per_s", "mfu_pct", "phases", "lost")
    figures += ("gpu_busy_pct", "gpu_busy_source", "gpu_busy_bound", "gpu_wait_pct")
    return {
        "case": case.name,
        "ok": bool(last) and case.must <= ids and not ids & case.must_not,
        "planted": planted,
        "raised": list(raised.values()),
        "ranks": [{name: rank[name] for name in figures} for rank in middle],
    }


def main() -> int:
    """Run the cases for so many GPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", help="folder for a recording of each case")
    arguments = parser.parse_args()
    fine = True
    for case in CASES:
        if case.gpus == arguments.gpus and arguments.only in case.name:
            verdict = watch(case, Path(arguments.keep) if arguments.keep else None)
            print(json.dumps(verdict), flush=True)
            fine &= verdict["ok"]
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
