"""Trainings of several processes, started as people start them, and the monitor that watches them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from collectors.trainings.source import StepsSource
from llmtop.model import jobs
from llmtop.model.snapshot import Job, Rank
from tests.support.processes import environment, wait_for

_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI")

STEPPING = """
import time
import llmtop
while True:
    with llmtop.step(tokens=100):
        time.sleep(0.01)
"""
"""Without torch: a rank as far as its launcher knows."""

TRAINING = """
import sys, time, torch
import torch.distributed as dist
from tests.support.light_optimizer import LightSGD
ranks = len(sys.argv) > 1 and sys.argv[1] == "ddp"
model = torch.nn.Linear(16, 1)
if ranks:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
torch.set_num_threads(1)
optimizer = LightSGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""
"""Knows nothing of llmtop: with the argument "ddp" ranks that train together, else one alone."""

SPAWNING = """
import sys, time
import torch.distributed as dist
import torch.multiprocessing as mp

def train(rank, address, size):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    import llmtop
    while True:
        with llmtop.step(tokens=100):
            time.sleep(0.01)

if __name__ == "__main__":
    mp.spawn(train, args=(sys.argv[1], int(sys.argv[2])), nprocs=int(sys.argv[2]))
"""
"""Ranks that no variable tells of."""


class Started(subprocess.Popen[bytes]):
    """A launcher with all its processes, which are killed when the ``with`` is left."""

    def __init__(self, *command: str, **variables: str) -> None:
        clean = {name: value for name, value in environment().items() if not name.startswith(_LAUNCHERS)}
        super().__init__(
            command,
            env={**clean, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        """Kill all of it: launcher and ranks, wherever the launcher has put them."""
        children = _below(self.pid)
        for pid in (self.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(100)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
        super().__exit__(kind, value, traceback)


def _below(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    children = [int(child) for child in listed]
    return children + [deeper for child in children for deeper in _below(child)]


def torchrun(script: Path, ranks: int, *options: str, arguments: tuple[str, ...] = ()) -> list[str]:
    """The command of torchrun, with its options before the script and the script's own behind."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"),
        *(*options, str(script), *arguments),
    ]


class Watched:
    """What a monitor says of jobs, looked at again and again as a hub does."""

    def __init__(self, source: StepsSource) -> None:
        self._source = source
        self.ranks: tuple[Rank, ...] = ()
        self.jobs: dict[str, Job] = {}

    def look(self) -> Watched:
        """Have it look now."""
        self.ranks = self._source.latest().ranks
        self.jobs = {job.name: job for job in jobs.job_totals(self.ranks)}
        return self

    def until(self, condition: Callable[[Watched], object], seconds: float = 90.0) -> Watched:
        """Look until that holds."""
        wait_for(lambda: condition(self.look()), seconds, what=f"a condition on {self.jobs}")
        return self

    def until_seen(self, *ranks: int) -> Watched:
        """Look until there are that many live jobs with so many ranks each, and the rates of all are known."""
        return self.until(
            lambda _: (
                sorted(job.ranks_seen for job in self.live.values()) == sorted(ranks)
                and all(job.steps_per_s is not None for job in self.live.values())
            )
        )

    @property
    def live(self) -> dict[str, Job]:
        """The jobs that have not ended."""
        return {name: job for name, job in self.jobs.items() if job.state != "gone"}

    def of(self, job: str) -> list[Rank]:
        """The ranks of a job that have not ended."""
        return [rank for rank in self.ranks if rank.job == job and rank.state != "gone"]


@contextmanager
def watching(directory: Path) -> Iterator[Watched]:
    """A monitor of the trainings in a directory."""
    source = StepsSource(directory)
    source.start()
    try:
        yield Watched(source)
    finally:
        source.close()
