"""Whether `llmtop postmortem` names the rank that failed, with NCCL: python -m tests.gpu.check_postmortem

Five faults on two GPUs: an exception, SIGKILL, SIGSTOP, a loader that sleeps, a tensor of another shape. NCCL's
watchdog writes the flight recorder's dumps at its timeout, which torchrun's logs and those are read with. Prints a
JSON object a fault, and exits 1 when a culprit is not the right one or an innocent rank is named. `--backend gloo`
tries the faults that end a process on the CPU: gloo writes no dumps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gpu.check_capture import end
from tests.support.processes import REPOSITORY, environment

TRAINING = str(Path(__file__).with_name("postmortem_training.py"))
CULPRIT = 1
FAULTS = {
    "exception": "exception",
    "killed": "killed",
    "stopped": "stopped",
    "loader": "data",
    "shape": "shape_or_dtype",
}
"""Fault -> class. NCCL does not always end at a different shape: exit 3 is right as well."""
WITHOUT_DUMPS = ("exception", "killed")
PATIENCE = 75.0


def plant(fault: str, backend: str) -> dict[str, Any]:
    """Let one training fail, and read what it left."""
    with tempfile.TemporaryDirectory(prefix="lt-") as name:
        folder = Path(name)
        (folder / "dumps").mkdir()
        env = environment(
            OMP_NUM_THREADS="1",
            TORCH_FR_BUFFER_SIZE="2000",
            TORCH_NCCL_TRACE_BUFFER_SIZE="2000",
            TORCH_NCCL_DUMP_ON_TIMEOUT="1",
            TORCH_FR_DUMP_TEMP_FILE=f"{folder}/dumps/rank_",
            TORCH_NCCL_DEBUG_INFO_TEMP_FILE=f"{folder}/dumps/rank_",
        )
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        logs = ["--log-dir", f"{folder}/logs", "--redirects", "3", TRAINING, fault, backend]
        begun = time.monotonic()
        with (folder / "launcher.log").open("w") as said:
            training = subprocess.Popen(
                [sys.executable, *launch, *logs], env=env, stdout=said, stderr=said, start_new_session=True
            )
            try:
                training.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                pass
            finally:
                end(training)
        command = [sys.executable, "-m", "llmtop", "postmortem", str(folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=60, check=False)
        report = json.loads(done.stdout) if done.stdout else {}
        named = [(one["rank"], one["class"]) for one in report.get("culprits", [])]
        return {
            "fault": fault,
            "seconds": round(time.monotonic() - begun, 1),
            "dumps": len(list((folder / "dumps").iterdir())),
            "named": named,
            "summary": report.get("summary", done.stderr[-300:]),
            "is_class_right": bool(named) and named[0][1] == FAULTS[fault],
            "ok": [rank for rank, _ in named] == [CULPRIT] or (fault == "shape" and not named),
        }


def main() -> None:
    """Plant each fault and judge the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    options = parser.parse_args()
    faults = FAULTS if options.backend == "nccl" else WITHOUT_DUMPS
    results = []
    for fault in faults:
        results.append(plant(fault, options.backend))
        print(json.dumps(results[-1]), flush=True)
    sys.exit(0 if all(one["ok"] for one in results) else 1)


if __name__ == "__main__":
    main()
