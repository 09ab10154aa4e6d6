"""Start planted trainings; compute from their stamps where the time went (tests/data/health_plants/RUNS.md).

python -m tests.support.run_plants --list
python -m tests.support.run_plants --run NAME [--folder FOLDER] [COMMAND…]

COMMAND is a prefix such as `python -m llmtop run --`. stdout is the truth as JSON: seconds × ranks by class, from
the stamps of `run_plant_training.py` and of this program alone. The output of the training goes to
FOLDER/output.txt (without --folder: a temporary folder that is removed).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.processes import REPOSITORY

CLASSES = (
    "start", "compile", "productive", "wait_data", "wait_communication", "checkpoint", "evaluation", "hang",
    "lost", "down", "other",
)  # fmt: skip
_POLL_SECONDS = 0.05
_LONGEST_SECONDS = 300


@dataclass(frozen=True)
class Plant:
    """One planted training."""

    text: str
    options: dict[str, Any]
    ranks: int = 1
    launch: str = "python"
    """"python", "torchrun" or "slurm" (one process a rank, as srun starts them)."""
    kill: dict[str, Any] = field(default_factory=dict)
    """step, rank (None: all) and signal: sent once a rank has made the step."""
    restart_after: float | None = None
    """Seconds between the end of the first start and a second one by hand or by the queue."""


_STEP = {"forward": 0.06, "backward": 0.12}
PLANTS = {
    "healthy": Plant("one process, nothing planted", {**_STEP, "steps": 200}),
    "accumulation": Plant(
        "gradients of four micro-batches a step",
        {"forward": 0.02, "backward": 0.04, "steps": 150, "accumulate": 4},
    ),
    "compile": Plant("torch.compile (aot_eager) in the first step", {**_STEP, "steps": 150, "compile": True}),
    "evaluation": Plant(
        "an evaluation of 30 batches every 40 steps", {**_STEP, "steps": 160, "eval_every": 40, "eval_batches": 30}
    ),
    "data_wait": Plant(
        "two workers that deliver a batch in 0.35 s", {**_STEP, "steps": 110, "workers": 2, "load_s": 0.7}
    ),
    "slow_rank": Plant(
        "two ranks, rank 1 computes 0.12 s more a step",
        {**_STEP, "steps": 130, "slow_rank": {"1": 0.12}}, 2, "torchrun",
    ),
    "checkpoint": Plant(
        "a checkpoint of 2 s every 25 steps", {**_STEP, "steps": 150, "save_every": 25, "save_s": 2.0}
    ),
    "hang": Plant(
        "two ranks, rank 1 stops for 20 s in step 60",
        {**_STEP, "steps": 120, "hang": {"step": 60, "rank": 1, "seconds": 20}}, 2, "torchrun",
    ),
    "elastic_crash": Plant(
        "two ranks, rank 1 raises in step 81, torchrun restarts both from the checkpoint of step 50",
        {**_STEP, "steps": 130, "save_every": 50, "crash": {"step": 81, "rank": 1}}, 2, "torchrun",
    ),
    "resumed": Plant(
        "raises in step 76, started by hand 8 s later, resumes from the checkpoint of step 40",
        {**_STEP, "steps": 120, "save_every": 40, "crash": {"step": 76, "rank": 0}}, restart_after=8,
    ),
    "killed": Plant(
        "four ranks, rank 2 is killed after step 70, torchrun restarts all from the checkpoint of step 40",
        {**_STEP, "steps": 110, "save_every": 40}, 4, "torchrun",
        {"step": 70, "rank": 2, "signal": signal.SIGKILL},
    ),
    "requeued": Plant(
        "two ranks of a SLURM job, ended by SIGTERM after step 70, requeued 6 s later with the same job id",
        {**_STEP, "steps": 110, "save_every": 40}, 2, "slurm",
        {"step": 70, "rank": None, "signal": signal.SIGTERM}, restart_after=6,
    ),
}  # fmt: skip
"""By name. Waits stand for GPU work, so that a busy machine changes little."""


# Stamps


@dataclass
class Life:
    """The stamps of one process."""

    rank: int
    attempt: int
    pid: int
    born: float
    states: list[tuple[float, str]]
    events: list[tuple[float, str, int]]

    def last(self) -> float:
        """Return when the process wrote its last stamp."""
        return max([self.born, *(at for at, _ in self.states), *(at for at, _, _ in self.events)])


def lives(folder: Path) -> list[Life]:
    """Return what each process stamped, by attempt and rank."""
    found = []
    for path in folder.glob("stamps/*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not lines:
            continue
        head = lines[0]
        states = [(line["at"], line["state"]) for line in lines if "state" in line]
        events = [(line["at"], line["event"], line["step"]) for line in lines if "event" in line]
        found.append(
            Life(
                head["rank"],
                head["attempt"],
                head["pid"],
                head["born"],
                [(head["born"], "start"), *states],
                events,
            )
        )
    return sorted(found, key=lambda life: (life.attempt, life.rank))


def _intervals(life: Life, end: float) -> Iterator[tuple[float, float, str]]:
    """Yield what the process did up to `end`."""
    states = [*life.states, (end, "")]
    for (begin, state), (following, _) in itertools.pairwise(states):
        if min(following, end) > begin:
            yield begin, min(following, end), "other" if state == "end" else state


def truth(name: str, folder: Path, failures: Sequence[float], began: float, ended: float) -> dict[str, Any]:
    """Compute seconds × ranks by class.

    Args:
        name: of the plant.
        folder: in which it ran.
        failures: when attempts failed, by time.monotonic; one fewer than attempts.
        began: start of the first command.
        ended: end of the last command.
    """
    plant, processes = PLANTS[name], lives(folder)
    first, last = min(life.born for life in processes), max(life.last() for life in processes)
    seconds: dict[str, float] = defaultdict(float)
    hung = [(begin, end) for life in processes for begin, end, state in _intervals(life, last) if state == "hang"]
    saved = [at for life in processes for at, event, _ in life.events if event == "saved"]
    for rank in range(plant.ranks):
        own = [life for life in processes if life.rank == rank]
        seconds["start"] += own[0].born - first
        for life in own:
            following = next((other.born for other in own if other.attempt > life.attempt), None)
            stop = last
            if (
                following is not None
            ):  # without a planted failure: as when torchrun cannot connect the ranks at once
                stop = next((at for at in failures if life.born < at < following), life.last())
            safe = max([at for at in saved if life.born < at < stop], default=life.born)
            for begin, end, state in _intervals(life, stop):
                lost = following is not None and state in ("productive", "wait_data", "wait_communication")
                _add(seconds, begin, end, state, safe if lost else None, hung)
            if following is not None:
                seconds["down"] += following - stop
    whole = (last - first) * plant.ranks
    return {
        "name": name,
        "text": plant.text,
        "ranks": plant.ranks,
        "attempts": len({life.attempt for life in processes}),
        "wall_seconds": round(last - first, 3),
        "launcher_seconds": round(ended - began, 3),
        "began_unix": round(time.time() - time.monotonic() + first, 3),
        "failures_unix": [round(time.time() - time.monotonic() + at, 3) for at in failures],
        "steps": max(step for life in processes for _, event, step in life.events if event == "step"),
        "seconds": {key: round(seconds[key], 3) for key in CLASSES},
        "percent": {key: round(100 * seconds[key] / whole, 2) for key in CLASSES},
        "sum_percent": round(100 * sum(seconds.values()) / whole, 2),
        "goodput_percent": round(100 * seconds["productive"] / whole, 2),
    }


def _add(
    seconds: dict[str, float], begin: float, end: float, state: str, safe: float | None,
    hung: list[tuple[float, float]],
) -> None:  # fmt: skip
    """Add an interval; what lies after `safe` is lost, waiting for a rank that hangs is a hang."""
    if state == "wait_communication":
        for hang_begin, hang_end in hung:
            overlap = max(min(end, hang_end) - max(begin, hang_begin), 0.0)
            seconds["hang"] += overlap
            seconds[state] -= overlap
    if safe is not None:
        lost = max(end - max(begin, safe), 0.0)
        seconds["lost"] += lost
        seconds[state] -= lost
    seconds[state] += end - begin


# Running


def _commands(plant: Plant, prefix: Sequence[str], start: int) -> list[tuple[list[str], dict[str, str]]]:
    """Return command and environment of each process that one start starts."""
    script = ["run_plant_training.py", "options.json"]
    if plant.launch == "torchrun":
        port = free_port()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(plant.ranks)]
        # With the static or a shared store a restarted rank reads the addresses of ranks that died.
        torchrun += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        return [([*prefix, *torchrun, *script], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})]
    if plant.launch == "python":
        return [([*prefix, sys.executable, *script], {"PLANT_ATTEMPT": str(start)})]
    port = free_port()
    return [
        ([*prefix, sys.executable, *script],
         {"PLANT_ATTEMPT": str(start), "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(plant.ranks),
          "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SLURM_JOB_ID": "471100",
          "SLURM_RESTART_COUNT": str(start), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank),
          "SLURM_NTASKS": str(plant.ranks), "SLURM_NODEID": "0", "SLURM_JOB_NAME": "plant"})
        for rank in range(plant.ranks)
    ]  # fmt: skip


def _kill(plant: Plant, folder: Path) -> float | None:
    """Send the planted signal once its step is made; return when, or None before that."""
    running = [life for life in lives(folder) if life.attempt == 0]
    made = [step for life in running for _, event, step in life.events if event == "step"]
    if not made or max(made) < plant.kill["step"]:
        return None
    chosen = [life.pid for life in running if plant.kill["rank"] in (None, life.rank)]
    sent = time.monotonic()
    for pid in chosen:
        os.kill(pid, plant.kill["signal"])
    return sent


def _wait(processes: list[subprocess.Popen[bytes]], poll: Callable[[], None]) -> None:
    """Wait for all, calling `poll` meanwhile."""
    limit = time.monotonic() + _LONGEST_SECONDS
    try:
        while any(process.poll() is None for process in processes):
            if time.monotonic() > limit:
                raise TimeoutError(f"the plant takes more than {_LONGEST_SECONDS} s; see output.txt in its folder")
            poll()
            time.sleep(_POLL_SECONDS)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)


def run(name: str, prefix: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a plant below a prefix and return its truth."""
    plant = PLANTS[name]
    shutil.copy(REPOSITORY / "tests" / "support" / "run_plant_training.py", folder)
    (folder / "options.json").write_text(json.dumps(plant.options))
    sent: list[float] = []

    def poll() -> None:
        if plant.kill and not sent and (at := _kill(plant, folder)) is not None:
            sent.append(at)

    began = time.monotonic()
    with (folder / "output.txt").open("ab") as output:
        for start in range(2 if plant.restart_after is not None else 1):
            if start:
                time.sleep(plant.restart_after or 0.0)
            processes = [
                subprocess.Popen(
                    command, env={**os.environ, **variables}, cwd=folder, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=output, start_new_session=True,
                )
                for command, variables in _commands(plant, prefix, start)
            ]  # fmt: skip
            _wait(processes, poll)
    ended = time.monotonic()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{name} ended with {[process.returncode for process in processes]}; see output.txt")
    crashes = [at for life in lives(folder) for at, event, _ in life.events if event == "crash"]
    return truth(name, folder, sorted([*crashes, *sent]), began, ended)


def main(arguments: Sequence[str]) -> None:
    if list(arguments) == ["--list"]:
        for name, plant in PLANTS.items():
            print(f"{name:14} {plant.ranks} rank{'s' if plant.ranks > 1 else ' '} {plant.launch:9} {plant.text}")
        return
    if len(arguments) < 2 or arguments[0] != "--run" or arguments[1] not in PLANTS:
        sys.exit("Usage: python -m tests.support.run_plants --list | --run NAME [--folder FOLDER] [COMMAND…]")
    name, prefix = arguments[1], list(arguments[2:])
    if prefix[:1] == ["--folder"]:
        folder = Path(prefix[1]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(run(name, prefix[2:], folder)))
        return
    with tempfile.TemporaryDirectory(prefix="lt-plant-") as made:
        print(json.dumps(run(name, prefix, Path(made))))


if __name__ == "__main__":
    main(sys.argv[1:])
