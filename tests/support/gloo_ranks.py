"""Real ranks of one job over gloo on made-up nodes: each node a folder of sockets of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.ports import free_port
from tests.support.processes import environment, wait_for

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import tests.support.light_optimizer
from torch import nn

stop, slow, hung = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
net = nn.parallel.DistributedDataParallel(nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    if rank == hung and stop.exists():
        time.sleep(1000)
    time.sleep(0.1 if rank == slow else 0.02)
    net(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class GlooRanks:
    """A job of `llmtop run` ranks (a context manager); `hang` has one stop calling collectives."""

    def __init__(
        self, folder: Path, nodes: Sequence[Path], *, a_node: int = 1, slow: int = -1, hung: int = -1
    ) -> None:
        """Start them.

        Args:
            folder: for the script.
            nodes: the folder of sockets of each node.
            a_node: ranks on each.
            slow: the rank that takes 80 ms a step longer.
            hung: the rank that hangs when told to.
        """
        script, self._stop = folder / "train.py", folder / "stop"
        script.write_text(SCRIPT)
        world, port = len(nodes) * a_node, free_port()
        self._errors = [folder / f"rank{rank}.err" for rank in range(world)]
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "llmtop", "run", "-q", "--"),
                    *(sys.executable, str(script), str(self._stop), str(slow), str(hung)),
                ],
                env=environment(
                    RANK=str(rank),
                    LOCAL_RANK=str(rank % a_node),
                    WORLD_SIZE=str(world),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    OMP_NUM_THREADS="1",
                    LLMTOP_DIR=str(nodes[rank // a_node]),
                ),
                stdout=subprocess.DEVNULL,
                stderr=self._errors[rank].open("w"),
            )
            for rank in range(world)
        ]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait for the first steps.

        Raises:
            AssertionError: a rank has ended, or `condition()` was not truthy within 240 s.
        """

        def is_met() -> object:
            ended = [rank for rank, one in enumerate(self.processes) if one.poll() is not None]
            assert not ended, f"ranks {ended} have ended: {self._errors[ended[0]].read_text()[-2000:]}"
            return condition()

        wait_for(is_met, what=what)

    def hang(self) -> None:
        """Have the rank that shall hang do so."""
        self._stop.write_text("")

    def __enter__(self) -> GlooRanks:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.processes:
            one.kill()
        for one in self.processes:
            one.wait(100)
