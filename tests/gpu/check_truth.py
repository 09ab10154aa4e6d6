"""The live screen and both profilers beside each other, on trainings that nobody wrote for llmtop; needs a GPU.

    python -m tests.gpu.check_truth --out FOLDER NAME…

Runs the named commands of `foreign_commands` in turn, each as `llmtop run -- python …` while `llmtop record`
watches, then captures five steps by torch.profiler; then once more under `llmtop run --nsys`, for five steps of
nsys. Appends a JSON object a command to truth.jsonl in the folder, so that the table grows from call to call, and
keeps the recordings and captures beside it. What is true is device time a step in a capture over the undisturbed
step, as the report has it; the verdict is judged by hand, from those, before the live one is looked at.

`--prepare` only makes what the commands load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from llmtop.capture import targets
from llmtop.model.snapshot import Snapshot
from llmtop.recording.reader_writer import Reader
from tests.gpu.check_capture import end
from tests.gpu.foreign_commands import COMMANDS, FOREIGN, Command
from tests.support.processes import REPOSITORY, environment

LIVE_SECONDS = 24.0
"""What is watched after the first steps; the figures are those of its last `JUDGED_SECONDS`."""
JUDGED_SECONDS = 8.0
START_SECONDS = 100.0
STEPS = "5"


class Run:
    """One command in a folder of its own."""

    def __init__(self, name: str, command: Command, out: Path) -> None:
        self.name, self.command, self.out = name, command, out
        self.folder = Path(tempfile.mkdtemp(prefix="lt-"))
        self.variables = environment(LLMTOP_DIR=str(self.folder / "s"))
        os.environ["LLMTOP_DIR"] = self.variables["LLMTOP_DIR"]

    @contextlib.contextmanager
    def training(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """The command under `llmtop run` until the block ends; its output goes beside the results."""
        log = (self.out / f"{self.name}.log").open("ab")
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [self.command.variables.get("PYTHONPATH")])])
        process = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "run", *options, "--", sys.executable, *self.command.arguments],
            cwd=FOREIGN / self.command.folder,
            env={**self.variables, **self.command.variables, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end(process)
            log.close()

    def steps(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until all ranks publish; False when the command ends first, or never does."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if len(targets.list_attached()) >= self.command.ranks:
                return True
            time.sleep(0.2)
        return False

    def capture(self, engine: str) -> dict[str, Any]:
        """Five steps; returns what the report says, or why there is none."""
        command = [sys.executable, "-m", "llmtop", "capture", "--json", "--engine", engine, "--steps", STEPS]
        done = subprocess.run(
            [*command, "--out", str(self.out / self.name)],
            capture_output=True,
            text=True,
            env=self.variables,
            timeout=150,
            check=False,
        )
        if done.returncode != 0:
            return {"error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
        report = json.loads(done.stdout)["report"] or {}
        correction = report.get("correction") or {}
        devices = report.get("devices") or [{}]
        return {
            "verdict": report.get("verdict"),
            "reason": report.get("reason"),
            "true_busy_pct": correction.get("busy_pct"),
            "step_ms": _ms(correction.get("undisturbed_seconds")),
            "captured_step_ms": _ms(correction.get("captured_seconds")),
            "device_ms": _ms(correction.get("device_seconds")),
            "lost_pct": correction.get("lost_pct"),
            "uncorrected": correction.get("reason"),
            "window_busy_pct": [device.get("busy_pct") for device in devices],
            "findings": [finding["id"] for finding in report.get("findings", [])],
        }

    def watched(self, seconds: float) -> dict[str, Any]:
        """What the live screen says of it."""
        recording = self.out / f"{self.name}.llmtop"
        recording.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "llmtop",
            "record",
            str(recording),
            "-i",
            "0.5",
            "--seconds",
            str(seconds),
        ]
        subprocess.run(command, env=self.variables, check=True, capture_output=True, timeout=3600)
        reader = Reader(recording)
        told = [snapshot for _, snapshot in reader.snapshots()]
        reader.close()
        return judged(told)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.mean(known), 2) if known else None


def judged(told: list[Snapshot]) -> dict[str, Any]:
    """The figures of the last seconds, and which alerts stood in how much of them."""
    last = [one for one in told if one.time >= told[-1].time - JUDGED_SECONDS]
    stood = Counter(f"{alert.id} rank {_rank(one, alert.pid)}" for one in last for alert in one.alerts)
    words = {alert.id: alert.summary for one in last for alert in one.alerts}
    mine = {rank.gpu_uuid for rank in last[-1].ranks}
    gpus = [gpu for one in last for gpu in one.gpus if gpu.uuid in mine]
    return {
        "ranks": [msgspec.to_builtins(rank) | {"new_steps": []} for rank in last[-1].ranks],
        "util_pct": _mean(gpu.util_pct for gpu in gpus),
        "sm_active_pct": _mean(gpu.sm_active_pct for gpu in gpus),
        "power_watts": _mean(gpu.power_watts for gpu in gpus),
        "alerts": {name: round(count / len(last), 2) for name, count in stood.items()},
        "words": words,
    }


def _rank(snapshot: Snapshot, pid: int | None) -> int | None:
    return next((rank.rank for rank in snapshot.ranks if rank.pid == pid), None)


def check(name: str, command: Command, out: Path, seconds: float, *, nsys: bool) -> dict[str, Any]:
    """Run one command, with nsys once more; what could not be had says why."""
    row: dict[str, Any] = {"name": name, "command": command.line}
    run = Run(name, command, out)
    with run.training() as process:
        row["attached"] = run.steps(process)
        time.sleep(3)
        row["live"] = run.watched(seconds)
        row["torch.profiler"] = run.capture("torch.profiler") if row["attached"] else {"error": "not attached"}
        row["ended"] = process.poll()
    if not nsys:
        return row
    with run.training("--nsys") as process:
        if run.steps(process):
            time.sleep(8)
            row["nsys"] = run.capture("nsys")
        else:
            row["nsys"] = {"error": "not attached"}
    return row


def main() -> int:
    """Run the named ones; 1 when one of them could not be run at all."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="+", choices=sorted(COMMANDS))
    options.add_argument(
        "--out", type=Path, default=Path("truth"), help="folder of truth.jsonl, recordings and logs"
    )
    options.add_argument("--prepare", action="store_true")
    options.add_argument("--no-nsys", action="store_true", help="only torch.profiler")
    options.add_argument("--seconds", type=float, default=LIVE_SECONDS, help="watched")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    good = True
    for name in given.names:
        command = COMMANDS[name]
        try:
            _prepare(command.prepare, FOREIGN / command.folder)
            if given.prepare:
                continue
            row = check(name, command, given.out, given.seconds, nsys=not given.no_nsys)
        except Exception as error:  # noqa: BLE001 - one that cannot run must not cost the others their GPU time
            row, good = {"name": name, "error": f"{type(error).__name__}: {error}"}, False
        with (given.out / "truth.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(_short(row)), flush=True)
    return 0 if good else 1


def _prepare(prepare: Callable[[Path], None] | None, folder: Path) -> None:
    if prepare is None:
        return
    done = folder / f".prepared{prepare.__name__.strip('<>')}"
    if not done.exists():
        prepare(folder)
        done.touch()


def _short(row: dict[str, Any]) -> dict[str, Any]:
    live = row.get("live") or {}
    ranks = live.get("ranks") or [{}]
    said = ("error", "verdict", "true_busy_pct", "step_ms")
    keys = ("step_seconds_p50", "gpu_idle_pct", "gpu_host_paced_pct", "gpu_busy_pct", "gpu_busy_source")
    return {
        "name": row["name"],
        "error": row.get("error"),
        "util": live.get("util_pct"),
        "sm": live.get("sm_active_pct"),
        "live": [{key: rank.get(key) for key in keys} for rank in ranks],
        "alerts": live.get("alerts"),
        **{
            engine: {key: (row.get(engine) or {}).get(key) for key in said}
            for engine in ("torch.profiler", "nsys")
        },
    }


if __name__ == "__main__":
    sys.exit(main())
