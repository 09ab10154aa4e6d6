"""Record what the screen must tell apart, on real GPUs: python -m tests.gpu.check_situations --out FOLDER [NAME…]

Each NAME is a training that knows nothing of llmtop (situation_training.py), run as `llmtop run -- python …`, and
watched by `llmtop record`, a snapshot a second, into FOLDER/NAME.llmtop. Those of two ranks (hung, straggler) come
first and have two GPUs; the others run side by side, one a GPU (CUDA_VISIBLE_DEVICES). Two GPUs take some 180 s
for all, a fresh machine's first import of torch included; no case is begun that `--limit` seconds do not leave
room for.

Prints a JSON line a case: the alerts of the last snapshot, and whether the situation's own is among them. Goes on
after a case that fails, with the end of what its training wrote in its line, and then exits 1. `--backend gloo`
tries it on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Reader
from tests.gpu.check_capture import end
from tests.support.processes import REPOSITORY, environment

TRAINING = str(Path(__file__).with_name("situation_training.py"))
SECONDS = {
    "healthy": 20,
    "starved": 22,
    "launch_bound": 20,
    "hung": 26,
    "straggler": 24,
    "checkpointing": 32,
    "leaking": 34,
}
"""That are recorded, from the first steps on."""
OF_RANKS = ("hung", "straggler")
ALERTS = {
    "healthy": (),
    "starved": ("input_bound",),
    "launch_bound": ("launch_bound",),
    "hung": ("hung_collective",),
    "straggler": ("straggler",),
    "checkpointing": (),
    "leaking": ("memory_growth", "memory_pressure"),
}
"""Of which the last snapshot should have one; where there is none, it should have no warning."""
START_SECONDS = 75.0
"""Until the first steps: on a fresh machine the import of torch takes 30."""


class Case:
    """One training, its recording, and what became of it."""

    def __init__(self, name: str, out: Path, backend: str, gpus: Sequence[int]) -> None:
        self.name, self.backend, self.gpus = name, backend, gpus
        self.recording = out / f"{name}.llmtop"
        self.log = out / f"{name}.log"

    def run(self) -> dict[str, Any]:
        """Run and record it; the line that is printed."""
        begun = time.monotonic()
        row: dict[str, Any] = {"name": self.name, "gpus": list(self.gpus)}
        try:
            with tempfile.TemporaryDirectory(prefix="lt-") as folder:
                row |= self._recorded(Path(folder))
        except Exception as error:  # noqa: BLE001 - one that cannot run must not cost the others their GPU time
            row |= {"ok": False, "error": f"{type(error).__name__}: {error}"}
        if not row["ok"] and self.log.exists():
            row["training_said"] = self.log.read_text(errors="replace")[-1500:]
        return row | {"seconds": round(time.monotonic() - begun, 1)}

    def _recorded(self, folder: Path) -> dict[str, Any]:
        variables = environment(LLMTOP_DIR=str(folder / "s"), OMP_NUM_THREADS="4")
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*(launch if self.name in OF_RANKS else []), TRAINING, self.name, "--backend", self.backend]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "llmtop", "run", "--", sys.executable, *command],
                env=variables | (visible if self.gpus else {}), cwd=folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                self._wait(process)
                self._record(variables)
            finally:
                end(process)
        return self._judged()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until its first steps are done."""
        deadline = time.monotonic() + START_SECONDS
        while b"training\n" not in self.log.read_bytes():
            if process.poll() is not None:
                raise RuntimeError(f"the training ended with {process.returncode} before its first steps")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no step within {START_SECONDS:.0f} s")
            time.sleep(0.1)

    def _record(self, variables: dict[str, str]) -> None:
        shown = ["--gpus", ",".join(map(str, self.gpus))] if self.gpus else []
        seconds = SECONDS[self.name]
        command = [sys.executable, "-m", "llmtop", "record", str(self.recording), "--force", *shown]
        done = subprocess.run(
            [*command, "--interval", "1", "--seconds", str(seconds)],
            env=variables, cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=seconds + 40, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"llmtop record ended with {done.returncode}: {done.stderr.strip()[-500:]}")

    def _judged(self) -> dict[str, Any]:
        reader = Reader(self.recording)
        told = [snapshot for _, snapshot in reader.snapshots()]
        reader.close()
        last = told[-1]
        warned = {alert.id for alert in last.alerts if alert.severity != "info"}
        wanted = set(ALERTS[self.name])
        good = bool(warned & wanted) if wanted else not warned
        if self.name == "checkpointing":
            good = any(rank.rare is not None for rank in last.ranks)
        return {"ok": good and bool(last.ranks), "snapshots": len(told), **_figures(last)}


def _figures(last: Snapshot) -> dict[str, Any]:
    return {
        "alerts": {alert.id: alert.summary for alert in last.alerts},
        "steps": {str(rank.rank): [rank.step, rank.step_seconds_p50] for rank in last.ranks},
        "util_pct": [gpu.util_pct for gpu in last.gpus],
        "power_watts": [gpu.power_watts for gpu in last.gpus],
        "memory_bytes": [gpu.mem_used_bytes for gpu in last.gpus],
    }


class Round:
    """All the cases, as many at once as there are GPUs for."""

    def __init__(self, out: Path, backend: str, gpus: Sequence[int], limit: float) -> None:
        self.out, self.backend, self.gpus, self.limit = out, backend, gpus, limit
        self.good, self._begun, self._lock = True, time.monotonic(), threading.Lock()

    def run(self, names: Sequence[str]) -> None:
        """Those of ranks in turn, then the others side by side, the longest first."""
        for name in [one for one in names if one in OF_RANKS]:
            self._one(name, self.gpus[:2] if self.backend == "nccl" else ())
        alone = deque(sorted(set(names) - set(OF_RANKS), key=lambda one: -SECONDS[one]))
        lanes = [threading.Thread(target=self._lane, args=(alone, gpu)) for gpu in self.gpus]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join(600)

    def _lane(self, names: deque[str], gpu: int) -> None:
        while True:
            try:
                name = names.popleft()
            except IndexError:
                return
            self._one(name, (gpu,) if self.backend == "nccl" else ())

    def _one(self, name: str, gpus: Sequence[int]) -> None:
        left = self.limit - (time.monotonic() - self._begun)
        if left < SECONDS[name]:
            self._tell({"name": name, "ok": False, "error": f"not begun: {left:.0f} s left of {self.limit:.0f}"})
        else:
            self._tell(Case(name, self.out, self.backend, gpus).run())

    def _tell(self, row: dict[str, Any]) -> None:
        with self._lock:
            self.good &= row["ok"]
            print(json.dumps(row | {"at_seconds": round(time.monotonic() - self._begun, 1)}), flush=True)


def _gpus() -> list[int]:
    """The GPUs that may be used: those of CUDA_VISIBLE_DEVICES, else all; none where nobody can tell."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return [int(number) for number in visible.split(",")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return []
    return list(range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines())))


def main() -> int:
    """Record the named ones, or all."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SECONDS)}; default: all")
    options.add_argument(
        "--out", type=Path, required=True, help="folder of the recordings and the trainings' logs"
    )
    options.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    options.add_argument("--limit", type=float, default=200.0, help="seconds after which no case is begun")
    given = options.parse_args()
    unknown = set(given.names) - set(SECONDS)
    if unknown:
        options.error(f"no situation is called {', '.join(sorted(unknown))}; there are {', '.join(SECONDS)}")
    names = given.names or list(SECONDS)
    gpus = _gpus() if given.backend == "nccl" else [0]
    needed = 2 if set(names) & set(OF_RANKS) else 1
    if given.backend == "nccl" and len(gpus) < needed:
        options.error(f"{needed} GPUs are needed, there are {len(gpus)}; --backend gloo tries it on the CPU")
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ.pop("LLMTOP_DIR", None)
    cases = Round(given.out.resolve(), given.backend, gpus, given.limit)
    cases.run(names)
    return 0 if cases.good else 1


if __name__ == "__main__":
    sys.exit(main())
