"""A job of gloo ranks on two "nodes" of this machine: two folders of sockets, each with a name of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import environment, wait_for
from tests.support.trainings import sockets

_LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "SLURM", "OMPI_", "PMI", "LLMTOP_")

TOGETHER = """
import sys, time, torch
import torch.distributed as dist
import tests.support.light_optimizer
torch.set_num_threads(1)
dist.init_process_group("gloo")
late = 0.06 * (sys.argv[1:] == [str(dist.get_rank())])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03 + late)
"""
"""Ranks that train together, so that the death of one ends all. One that is named sleeps longer than others."""

APART = """
import sys, time, torch
import torch.distributed as dist
from tests.support.light_optimizer import LightSGD
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(32, 32)
optimizer = LightSGD(model.parameters(), lr=0.01)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
print("begins", flush=True)
for step in range(steps):
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03)
print("ends", flush=True)
dist.destroy_process_group()
"""
"""Ranks that have met, and then train each for itself: the others live on when one dies."""


TOO_LATE = ("has passed: step", "not answered", "no rank was captured")
"""What a capture prints of ranks that received its request too late, as on a busy machine."""


class TwoNodes:
    """Six ranks, three a node (a context manager)."""

    def __init__(
        self, folder: Path, script: str, *arguments: str, torchrun: bool = False, watched: bool = True
    ) -> None:
        """Start them.

        Args:
            folder: for all that they leave; short, for there are sockets in it.
            script: the training.
            arguments: of the script.
            torchrun: under an agent a node, whose store it then is; else rank 0 has it.
            watched: below `llmtop run`.
        """
        self.folder = folder
        self.nodes = [folder / "a", folder / "b"]
        for node in self.nodes:
            node.mkdir(mode=0o700, exist_ok=True)
        self._script = folder / "train.py"
        self._script.write_text(script)
        self._run = [sys.executable, "-m", "llmtop", "run", "-q", "--"] if watched else []
        self.port = free_port()
        start = self._agent if torchrun else self._rank
        self.processes = [start(number, arguments) for number in range(2 if torchrun else 6)]

    def _agent(self, node: int, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        launch = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=3"),
            *(f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={self.port}"),
        ]
        return self._started([*launch, str(self._script), *arguments], self.environment(node), f"agent{node}")

    def _rank(self, rank: int, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        env = self.environment(rank // 3) | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 3),
            "LOCAL_WORLD_SIZE": "3",
            "WORLD_SIZE": "6",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
        }
        return self._started([sys.executable, str(self._script), *arguments], env, f"rank{rank}")

    def _started(self, command: list[str], env: dict[str, str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*self._run, *command], env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def environment(self, node: int) -> dict[str, str]:
        """As on that node."""
        clean = {name: value for name, value in environment().items() if not name.startswith(_LAUNCHERS)}
        return clean | {
            "LLMTOP_DIR": str(self.nodes[node]),
            "SLURMD_NODENAME": f"node-{'ab'[node]}",
            "OMP_NUM_THREADS": "1",
        }

    def log(self, rank: int) -> bytes:
        """What a rank has written to stdout and stderr."""
        return (self.folder / f"rank{rank}.log").read_bytes()

    def wait_attached(self) -> None:
        """Wait until all six answer."""
        wait_for(lambda: all(len(sockets(node)) == 3 for node in self.nodes), 120, "six sockets")

    def kill(self, rank: int) -> None:
        """Kill a rank at once."""
        self.processes[rank].kill()
        self.processes[rank].wait(100)

    def capture(self, *words: str, node: int = 0) -> Capturing:
        """Start `llmtop capture` with these words on a node."""
        return Capturing(self, node, words)

    def captured(self, ranks: list[int], *words: str, node: int = 0) -> tuple[Capturing, str]:
        """Capture exactly these ranks, again where one of them received the request too late.

        Returns:
            The capture, which has ended, and what it printed on stderr.
        """

        def take() -> tuple[Capturing, str] | None:
            capture = self.capture(*words, node=node)
            said = capture.ends(None)
            captured = capture.facts["capture"]["ranks"] if capture.returncode == 0 else []
            printed = said + json.dumps(capture.facts)
            if captured != ranks and any(word in printed for word in TOO_LATE):
                return None
            assert (capture.returncode, captured) == (0, ranks), printed
            return capture, said

        found = wait_for(take, what=f"a capture that ranks {ranks} received in time")
        assert found is not None
        return found

    def __enter__(self) -> TwoNodes:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [below for one in self.processes for below in descendants(one.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for one in self.processes:
            one.kill()
            one.wait(100)


class Capturing(subprocess.Popen[str]):
    """`llmtop capture --json` under way."""

    def __init__(self, job: TwoNodes, node: int, words: tuple[str, ...]) -> None:
        self.said = job.folder / f"capture{len(list(job.folder.glob('capture*.err')))}.err"
        with self.said.open("w") as err:
            super().__init__(
                [sys.executable, "-m", "llmtop", "capture", "--json", "--steps", "3", *words],
                env=job.environment(node),
                cwd=job.folder,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    def ends(self, code: int | None = 0) -> str:
        """Wait for its end, and return what it printed on stderr. For None any exit code will do."""
        out, _ = self.communicate(timeout=240)
        said = self.said.read_text()
        assert code is None or self.returncode == code, said + out
        self.facts = json.loads(out) if out else None
        return said


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [deeper for child in children for deeper in descendants(child)]
