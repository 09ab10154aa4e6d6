"""`llmtop run` on a machine with GPUs: python -m tests.gpu.check_launch [--cpu] [NAME ...]

Prints one JSON object a check, with `ok`, and exits 1 when one is not:

- nsys: kernels and steps of a training that is no child of nsys, recorded by whatever nsys is there
  (LLMTOP_NSYS or PATH); its exit code; the session gone afterwards. With two GPUs the same under torchrun.
- auto: the phases of a loop without a line of llmtop, with the GPU's time in them.
- graphed, compiled: CUDA graphs and torch.compile run as without, and their steps are seen.
- cost: the median step with `llmtop run` against without, alternating: GPU-bound and launch-bound.

`--cpu` runs the same without a GPU, with what that leaves to check.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from llmtop.nsys_cli import tool as nsys
from llmtop.protocol import client, wire
from tests.support.processes import REPOSITORY, environment, wait_for

RUN = [sys.executable, "-m", "llmtop", "run"]
WINDOW_SECONDS = 2.0
ROUNDS = 3
MAX_HEALTHY_RATIO = 1.002
MAX_LAUNCH_BOUND_RATIO = 1.03


class Machine:
    """Where things go, and how a training is started here."""

    def __init__(self, cpu: bool, folder: Path) -> None:
        self.cpu = cpu
        self.folder = folder
        # An nsys older than 2025 records the ranges of nvtx 0.2.10 only: put that one on PYTHONPATH.
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY)]))
        self.environment = environment(LLMTOP_DIR=str(folder / "run"), PYTHONPATH=path)

    def command(self, kind: str, blocks: int, *launcher: str) -> list[str]:
        """The command line of the plain training."""
        python = [*launcher] if launcher else [sys.executable, "-m"]
        return [*python, "tests.gpu.plain_training", kind, str(blocks), *(["--cpu"] if self.cpu else [])]

    @contextmanager
    def running(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        """Run it until the block ends; at the beginning of the block it is warm."""
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            while process.stdout.readline() not in ("ready\n", ""):
                pass
            yield process
        finally:
            process.terminate()
            process.wait(60)

    def step_ms(self, command: list[str]) -> float:
        """Run it to its end and return the median step."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=300, check=True
        )
        return float(json.loads(done.stdout.splitlines()[-1])["step_ms"])


def recorded(machine: Machine, process: subprocess.Popen[str], tool: nsys.Nsys) -> dict[str, Any]:
    """Collect for a while, and count kernels, steps and processes in what came out."""
    session = nsys.session_of(process.pid)
    assert session is not None, "not in a session"
    report, tables = machine.folder / "r.nsys-rep", machine.folder / "r.sqlite"
    start = ["start", f"--session={session}", "-o", str(report), "-f", "true", "--sample=none", "--cpuctxsw=none"]
    started = tool.run(*start, "--stop-on-exit=false", seconds=60)
    time.sleep(WINDOW_SECONDS)
    tool.run("stop", f"--session={session}", seconds=180)
    tool.run("export", "-t", "sqlite", "-f", "true", "-o", str(tables), str(report), seconds=180)
    found: dict[str, Any] = {"start": started.stdout.strip()[-200:]}
    with closing(sqlite3.connect(tables)) as connection:
        for name, table in (("kernels", "CUPTI_ACTIVITY_KIND_KERNEL"), ("ranges", "NVTX_EVENTS")):
            column = "globalPid" if name == "kernels" else "globalTid"
            try:
                query = f"SELECT count(*), count(DISTINCT {column} >> 24) FROM {table}"
                found[name], found[f"{name}_processes"] = connection.execute(query).fetchone()
            except sqlite3.OperationalError:
                found[name] = found[f"{name}_processes"] = 0
    return found


def check_nsys(machine: Machine) -> Iterator[dict[str, Any]]:
    """Under nsys, alone and with two ranks."""
    tool = nsys.find_nsys()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    ways = {"gpt": machine.command("gpt", 100000)}
    if machine.cpu or _gpus() >= 2:
        ways["ddp"] = machine.command("ddp", 100000, *torchrun)
    for kind, command in ways.items():
        with machine.running([*RUN, "--nsys", "--", *command]) as process:
            found = recorded(machine, process, tool)
            session = nsys.session_of(process.pid)
        ranks = 2 if kind == "ddp" else 1
        wait_for(
            lambda session=session: session not in [s.id for s in nsys.list_sessions(tool)],
            30,
            "the session's end",
        )
        whole = found["ranges_processes"] == ranks and (machine.cpu or found["kernels_processes"] == ranks)
        yield {"check": f"nsys {kind}", "nsys": tool.version_text, **found, "ok": whole}
    code = subprocess.run(
        [*RUN, "--nsys", "--", "sh", "-c", "exit 7"], env=machine.environment, check=False, timeout=3600
    ).returncode
    yield {"check": "nsys exit code", "code": code, "ok": code == 7}


def _gpus() -> int:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=3600)
    return len(listed.stdout.splitlines())


def seen(machine: Machine, kind: str) -> dict[str, Any]:
    """What a monitor is told about an auto-attached training."""
    with machine.running([*RUN, "--", *machine.command(kind, 100000)]) as process:
        folder = Path(machine.environment["LLMTOP_DIR"])
        pattern = f"{process.pid}-*.sock"
        (path,) = wait_for(lambda: list(folder.glob(pattern)), 60, "the training's socket")
        host: dict[str, float] = {}
        gpu: dict[str, float] = {}
        steps = 0
        with client.Connection.open(path) as connection:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and (steps < 100 or (not gpu and not machine.cpu)):
                for message in connection.receive(1.0):
                    if isinstance(message, wire.Steps):
                        steps += len(message.steps)
                        host = {phase.name: phase.host_ns / 1e6 for phase in message.steps[-1].phases}
                    elif isinstance(message, wire.GpuTimes):
                        gpu = {name: ns / 1e6 for name, ns in message.times[-1].phases}
    return {"steps": steps, "host_ms": host, "gpu_ms": gpu}


def check_auto(machine: Machine) -> Iterator[dict[str, Any]]:
    """A loop without a line of llmtop, as it is, graphed and compiled."""
    for kind in ("gpt", "graphed", "compiled"):
        found = seen(machine, kind)
        wanted = {"dataload", "backward", "optimizer", "forward"} | (set() if machine.cpu else {"h2d"})
        whole = (
            found["steps"] > 0
            and wanted <= set(found["host_ms"])
            and (machine.cpu or wanted <= set(found["gpu_ms"]))
        )
        yield {"check": f"auto {kind}", **found, "ok": whole}


def check_cost(machine: Machine) -> Iterator[dict[str, Any]]:
    """With and without, alternating."""
    for kind, limit in (("gpt", MAX_HEALTHY_RATIO), ("tiny", MAX_LAUNCH_BOUND_RATIO)):
        command = machine.command(kind, 3 if kind == "gpt" else 30)
        pairs = [(machine.step_ms(command), machine.step_ms([*RUN, "--", *command])) for _ in range(ROUNDS)]
        without, within = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = within / without
        yield {
            "check": f"cost {kind}",
            "without_ms": without,
            "within_ms": within,
            "ratio": ratio,
            "ok": ratio <= limit,
        }


CHECKS: dict[str, Callable[[Machine], Iterator[dict[str, Any]]]] = {
    "nsys": check_nsys,
    "auto": check_auto,
    "cost": check_cost,
}


def main() -> int:
    """Run them; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("names", nargs="*", choices=[*CHECKS, []])
    given = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="lt-") as folder:
        os.environ["LLMTOP_DIR"] = str(Path(folder) / "run")
        machine = Machine(given.cpu, Path(folder))
        for name in given.names or CHECKS:
            for result in CHECKS[name](machine):
                print(json.dumps(result), flush=True)
                good = good and result["ok"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
