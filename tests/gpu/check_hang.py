"""Whether a hang names the rank that is behind, and how soon: python -m tests.gpu.check_hang [--ranks 2]

Prints a JSON object a way: the alert, how many seconds after the last rank stopped it came, and what torch's
flight recorder and NCCL's RAS count then. Exits 1 when rank, collective or process group is not the right one,
or it took more than `WITHIN` seconds. Once with the training attached, once with nothing of llmtop in it, when
only NCCL's own RAS knows. `--backend gloo` tries the first on the CPU.
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
from pathlib import Path
from typing import Any

from collectors.nccl_ras import client
from llmtop.errors import LlmtopError
from tests.gpu.check_capture import end
from tests.support.processes import environment

TRAINING = str(Path(__file__).with_name("hanging_training.py"))
WITHIN, PATIENCE, MORE = 10.0, 75.0, 4.0
HANGS_AT = 40
"""As hanging_training.py has it, which needs torch."""


def hang(
    ranks: int, backend: str, attached: bool, patience: float = PATIENCE, keep: Path | None = None
) -> dict[str, Any]:
    """Let one training hang and hear the monitor.

    Args:
        ranks: how many; the last one hangs.
        backend: "nccl", or "gloo" on the CPU.
        attached: whether llmtop is in the training; else only NCCL's RAS knows.
        patience: seconds for all of it.
        keep: where the monitor records what it sees.
    """
    with tempfile.TemporaryDirectory(prefix="lt-") as folder, tempfile.TemporaryFile("w+") as said:
        env = environment(LLMTOP_DIR=f"{folder}/s", OMP_NUM_THREADS="1")
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", TRAINING, backend]
        run = [sys.executable, "-m", "llmtop", "run", "--", sys.executable] if attached else [sys.executable]
        training = subprocess.Popen([*run, *launch], env=env, stdout=said, stderr=said, start_new_session=True)
        record = ["--record", str(keep), "--force"] if keep else []
        monitor = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "--json", "-i", "0.5", *record],
            env=env, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        found: dict[str, Any] = {"attached": attached, "alert": None}
        ends = time.monotonic() + patience
        try:
            assert monitor.stdout is not None
            for text in monitor.stdout:
                snapshot = json.loads(text)
                alert = next((one for one in snapshot["alerts"] if one["id"] == "hung_collective"), None)
                if alert is not None:
                    found.setdefault("first", {"at": snapshot["time"], "summary": alert["summary"]})
                    found |= {"alert": alert, "at": snapshot["time"], "counts": counts(snapshot)}
                    # NCCL may tell before the ranks' own counts have come, which know the group's name.
                    if not attached or "process_group" in alert["evidence"]:
                        break
                    ends = min(ends, time.monotonic() + MORE)
                if time.monotonic() > ends or training.poll() is not None:
                    break
        finally:
            monitor.send_signal(signal.SIGINT)
            end(training)
            with contextlib.suppress(subprocess.TimeoutExpired):
                monitor.wait(10)
        said.seek(0)
        printed = said.read()
        hangs = [line for line in printed.splitlines() if " hangs at " in line]
        if hangs and found["alert"]:
            found["seconds"] = round(found["at"] - float(hangs[0].rpartition(" ")[2]), 1)
        if not found["alert"]:
            found["printed"] = printed[-1500:]
        return found | judge(found, ranks)


def counts(snapshot: dict[str, Any]) -> dict[str, Any]:
    """How far the ranks are in their collectives, by both witnesses: torch's flight recorder in each attached
    process, and NCCL's RAS, asked here and now (None where nobody listens)."""
    recorder = {
        str(rank["rank"]): {
            one["group"]: {name: one[name] for name in ("enqueued", "completed", "operation")}
            for one in rank["collectives"]
        }
        for rank in snapshot["ranks"]
    }
    begun = time.monotonic()
    try:
        answer = client.ask()
    except LlmtopError as error:
        return {"flight_recorder": recorder, "ras": None, "ras_said": str(error)}
    ras = [
        {
            "size": one.size,
            "called": {str(rank.rank): rank.collective_counts for rank in one.ranks},
            "missing": [rank.rank for rank in one.missing_ranks],
        }
        for one in answer.communicators
    ]
    return {"flight_recorder": recorder, "ras": ras, "ras_seconds": round(time.monotonic() - begun, 3)}


def judge(found: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Whether the right rank and collective were named in time, and whether both witnesses say the same."""
    evidence = (found["alert"] or {}).get("evidence", {})
    counted = found.get("counts") or {}
    behind = {
        "flight_recorder": _behind({r: _most(c) for r, c in (counted.get("flight_recorder") or {}).items()}),
        "ras": _behind(_by_ras(counted.get("ras") or [])),
    }
    group = evidence.get("process_group") if found["attached"] else evidence.get("communicator")
    right = (evidence.get("rank"), evidence.get("collective"), evidence.get("last_called"))
    return {
        "behind": behind,
        "named_group": group,
        "named_operation": evidence.get("operation"),
        "agree": None if None in behind.values() else behind["flight_recorder"] == behind["ras"],
        "ok": right == (ranks - 1, HANGS_AT, HANGS_AT - 1)
        and bool(group and evidence.get("operation"))
        and found.get("seconds", 1e9) <= WITHIN,
    }


def _most(groups: dict[str, dict[str, Any]]) -> int | None:
    return max((one["enqueued"] for one in groups.values()), default=None)


def _by_ras(communicators: list[dict[str, Any]]) -> dict[str, int | None]:
    """All-reduces that each rank has called, in the largest communicator."""
    largest = max(communicators, key=lambda one: one["size"], default={"called": {}})
    return {rank: called.get("AllReduce") for rank, called in largest["called"].items()}


def _behind(called: dict[str, int | None]) -> dict[str, int] | None:
    """The ranks that have called less than the others -> how many they have called; None where that is unknown."""
    known = {rank: number for rank, number in called.items() if number is not None}
    if len(known) < 2:
        return None
    return {rank: number for rank, number in known.items() if number < max(known.values())}


def main() -> int:
    """Both ways; prints and judges."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    given = options.parse_args()
    os.environ.pop("LLMTOP_DIR", None)
    ways = (True, False) if given.backend == "nccl" else (True,)
    results = [hang(given.ranks, given.backend, attached) for attached in ways]
    for result in results:
        print(json.dumps(result), flush=True)
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
