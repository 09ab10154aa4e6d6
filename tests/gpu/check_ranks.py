"""Which rank holds the others up, on two GPUs: python -m tests.gpu.check_ranks --out FILE [NAME…]

Runs trainings of two ranks (or more: check_eight.py) that know nothing of llmtop (rank_training.py) through
`llmtop run`, DDP and FSDP2, each with one plant, beside `llmtop --json`. Appends a JSON line a case to the file,
and prints a table: whom the monitor named, after how many steps, and whether that is right. `--backend gloo`
tries it on two CPU ranks. Exits 1 when a case is not as planted.
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
from typing import Any

from tests.gpu.check_capture import end
from tests.gpu.eight import CASES
from tests.gpu.rank_plants import PLANTS
from tests.support.processes import REPOSITORY, environment

TRAINING = str(Path(__file__).with_name("rank_training.py"))
USUAL = PLANTS[:5]
SILENT = ("nothing", "communication")
PATIENCE_S = 150
"""For a training and all that is before it: on a fresh machine the first import of torch alone takes a minute."""
WITHIN = 30
"""Steps in which a planted rank is to be named."""


def run(
    kind: str,
    plant: str,
    seconds: float,
    backend: str,
    interval: float,
    ranks: int = 2,
    patience: float = PATIENCE_S,
    keep: Path | None = None,
) -> dict[str, Any]:
    """One training beside the monitor; what was planted, and what was said.

    Args:
        kind: "ddp" or "fsdp2".
        plant: what the last rank does.
        seconds: how long it trains.
        backend: "nccl", or "gloo" on the CPU.
        interval: seconds between two snapshots.
        ranks: how many.
        patience: seconds for all that is before its first step, and after its last.
        keep: where the monitor records what it sees.
    """
    with tempfile.TemporaryDirectory(prefix="lt-") as directory, tempfile.TemporaryFile("w+") as errors:
        environ = environment(LLMTOP_DIR=directory, OMP_NUM_THREADS="1")
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        script = [TRAINING, "--kind", kind, "--plant", plant, "--seconds", str(seconds), "--backend", backend]
        record = ["--record", str(keep), "--force"] if keep else []
        training = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "run", "--", sys.executable, *launch, *script],
            env=environ, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
        monitor = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "--json", "--interval", str(interval), *record],
            env=environ, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        snapshots: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: snapshots.extend(map(json.loads, monitor.stdout or ())))
        reader.start()
        try:
            out, _ = training.communicate(timeout=patience + seconds)
        except subprocess.TimeoutExpired:
            out = ""
        finally:
            end(training)
            monitor.terminate()
            monitor.wait(10)
            reader.join(10)
        planted = next((json.loads(line) for line in out.splitlines() if line.startswith("{")), None)
        said = judge(kind, plant, planted, snapshots, ranks)
        if planted is None:
            errors.seek(0)
            said["training_said"] = errors.read()[-2000:]
        return said


def judge(
    kind: str, plant: str, planted: dict[str, Any] | None, snapshots: list[dict[str, Any]], ranks: int = 2
) -> dict[str, Any]:
    """Whom the monitor named, when, and whether that is right; the plant is on the last of the ranks."""
    last = ranks - 1
    accused: dict[int, dict[str, Any]] = {}
    bound: dict[str, Any] | None = None
    others: set[str] = set()
    for snapshot in snapshots:
        by_pid = {rank["pid"]: rank for rank in snapshot["ranks"]}
        for alert in snapshot["alerts"]:
            rank = by_pid.get(alert["pid"], {})
            if alert["id"] == "straggler":
                first = {"step": rank.get("step"), "summary": alert["summary"]}
                told = accused.setdefault(rank.get("rank", -1), first)
                told["evidence"] = alert["evidence"]
                told["pid_is_the_ranks"] = alert["evidence"].get("rank") == rank.get("rank")
            elif alert["id"] == "communication_bound":
                bound = bound or {"step": rank.get("step")}
                bound |= {"summary": alert["summary"], "evidence": alert["evidence"]}
            else:
                others.add(alert["id"])
    begun = (planted or {}).get("planted_at", 0)
    after = {rank: None if told["step"] is None else told["step"] - begun for rank, told in accused.items()}
    right = not accused if plant in SILENT else list(accused) == [last] and accused[last]["pid_is_the_ranks"]
    if plant == "communication":
        right = right and bound is not None
    return {
        "case": f"{kind} {plant}",
        "ok": bool(right and planted),
        "in_time": plant in SILENT or (after.get(last) is not None and 0 <= after[last] <= WITHIN),
        "accused": accused,
        "after_steps": after,
        "communication_bound": bound,
        "other_alerts": sorted(others),
        "planted": planted,
        "ranks": last_figures(snapshots, ranks),
    }


def last_figures(snapshots: list[dict[str, Any]], count: int = 2) -> list[dict[str, Any]]:
    """The ranks as they were told at nine tenths of the training, with what the straggler's rule goes by."""
    full = [
        ranks
        for ranks in (snapshot["ranks"] for snapshot in snapshots)
        if len(ranks) >= count and all(rank["state"] == "running" for rank in ranks)
    ]
    names = (
        "rank", "step", "step_seconds_p50", "arrivals", "exposed_seconds", "waits_seconds", "gpu_host_paced_pct",
        "overhead_seconds", "note",
    )  # fmt: skip
    return [{name: rank.get(name) for name in names} for rank in full[int(len(full) * 0.9)]] if full else []


def line(said: dict[str, Any]) -> str:
    """One case in a row of the table."""
    step = (said["planted"] or {}).get("step_s")
    named = ", ".join(
        f"rank {rank} after {said['after_steps'][rank]} steps, {told['evidence']['share_of_step_pct']:.0f} %"
        for rank, told in said["accused"].items()
    )
    bound = "communication_bound" if said["communication_bound"] else ""
    length = "-" if step is None else f"{1000 * step:.1f}"
    verdict = ("right" if said["in_time"] else "right, late") if said["ok"] else "WRONG"
    return f"{said['case']:<22} {length:>8} ms  {verdict:<11}  {named or 'nobody':<34} {bound}"


def main() -> int:
    """Run the cases that are named, or the usual ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(PLANTS)}, with or without ddp: or fsdp2: before it"
    )
    parser.add_argument("--out", required=True, help="file to append a JSON line a case to")
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--interval", type=float, default=0.25)
    parser.add_argument("--times", type=int, default=1, help="how often to run each case")
    told = parser.parse_args()
    wanted = [
        name if ":" in name else f"{kind}:{name}" for name in told.names or USUAL for kind in ("ddp", "fsdp2")
    ]
    right, late, table, begun = 0, 0, [], time.monotonic()
    for name in dict.fromkeys(wanted):
        for _ in range(told.times):
            kind, _, plant = name.partition(":")
            said = run(kind, plant, told.seconds, told.backend, told.interval)
            with Path(told.out).open("a") as file:
                file.write(json.dumps(said) + "\n")
            table.append(line(said))
            print(table[-1], flush=True)
            right += said["ok"]
            late += said["ok"] and not said["in_time"]
    print(f"\n{len(table)} cases in {time.monotonic() - begun:.0f} s\n" + "\n".join(table))
    print(f"{CASES}{right} of {len(table)} right, {late} of them after more than {WITHIN} steps")
    return 0 if right == len(table) else 1


if __name__ == "__main__":
    sys.exit(main())
