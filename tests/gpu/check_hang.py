"""Whether a hang names the rank that is behind, and how soon: python -m tests.gpu.check_hang [--ranks 2]

Prints a JSON object a way: the alert, and how many seconds after the last rank stopped it came. Exits 1 when the
rank is not the right one, or it took more than `WITHIN` seconds. Once with the training attached, once with
nothing of llmtop in it, when only NCCL's own RAS knows. `--backend gloo` tries the first on the CPU.
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

from tests.gpu.check_capture import end
from tests.support.processes import environment

TRAINING = str(Path(__file__).with_name("hanging_training.py"))
WITHIN, PATIENCE = 10.0, 75.0


def hang(ranks: int, backend: str, attached: bool) -> dict[str, Any]:
    """Let one training hang and hear the monitor."""
    with tempfile.TemporaryDirectory(prefix="lt-") as folder, tempfile.TemporaryFile("w+") as said:
        env = environment(LLMTOP_DIR=f"{folder}/s", OMP_NUM_THREADS="1")
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", TRAINING, backend]
        run = [sys.executable, "-m", "llmtop", "run", "--", sys.executable] if attached else [sys.executable]
        training = subprocess.Popen([*run, *launch], env=env, stdout=said, stderr=said, start_new_session=True)
        monitor = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "--json", "-i", "0.5"], env=env, stdout=subprocess.PIPE, text=True
        )
        found: dict[str, Any] = {"attached": attached, "alert": None}
        ends = time.monotonic() + PATIENCE
        try:
            assert monitor.stdout is not None
            for text in monitor.stdout:
                snapshot = json.loads(text)
                alert = next((one for one in snapshot["alerts"] if one["id"] == "hung_collective"), None)
                if alert is not None:
                    found |= {"alert": alert, "at": snapshot["time"]}
                if alert is not None or time.monotonic() > ends or training.poll() is not None:
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
        evidence = (found["alert"] or {}).get("evidence", {})
        found["ok"] = evidence.get("rank") == ranks - 1 and found.get("seconds", 1e9) <= WITHIN
        return found


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
