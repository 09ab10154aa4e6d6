"""Several ranks over gloo: who they are, and who waits for whom."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.protocol import client, wire
from tests.support.forked_ranks import run_ranks
from tests.support.processes import environment, wait_for
from tests.support.steps import Recorded, Zygote, read

pytestmark = pytest.mark.torch

TRAINING = """
import sys, time, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

kinds, steps = sys.argv[1].split(","), int(sys.argv[2])
dist.init_process_group(**GROUP)
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
chosen = []

def recorded():
    from llmtop.instrument.record import recorder
    return recorder.get().ring.count

def waited(since):
    # What this rank has waited for the other in the steps since then, as llmtop has it.
    from llmtop.instrument.record import recorder
    from tests.support.recorded import steps_of
    return sum(phase.host_ns for step in steps_of(recorder.get())[since:] for phase in step.phases
               if phase.name.endswith("communication")) / 1e9

def has_shown(kind, step):
    # Whether it shows by now who waits for whom. Beside other programs each rank waits for the other now and then,
    # and where both share one core, in each step: the difference is what rank 1 sleeps, 0.05 s a step.
    store.set(f"{kind} {step} {rank}", str(waited(begun)))
    first, second = (float(store.get(f"{kind} {step} {one}")) for one in range(2))
    return step >= LEAST and first - second > 0.03 * step

LEAST, MOST = 5, 200

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 1)
    def forward(self, x):
        if rank == 1:
            time.sleep(0.05)
        return self.second(self.first(x).relu())

for kind in kinds:
    net = Net()
    if kind == "ddp":
        net = nn.parallel.DistributedDataParallel(net)
    elif kind == "fsdp":
        net = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    elif kind == "fsdp2":
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        fully_shard(net.first, mesh=mesh)
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    begun = 0
    for step in range(steps or MOST):
        if step == 1:  # the first step of all is not recorded, and the first of each kind sets things up
            begun = recorded()
        net(torch.randn(8, 32)).sum().backward()
        if kind == "by_hand":
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if not steps and step and has_shown(kind, step):
            break
    chosen.append((begun, recorded()))
from tests.support.steps import show
for turn in range(2):
    if turn == rank:
        print("chosen:", chosen, flush=True)
        show()
    dist.barrier()
dist.destroy_process_group()
"""
BRACKETS = str.maketrans("()", "[]")
KINDS = ("ddp", "fsdp", "fsdp2", "by_hand")


def torchrun(path: Path, kinds: str, steps: int) -> list[str]:
    """The command; so many steps of each kind."""
    path.write_text(f"GROUP = {{'backend': 'gloo'}}\n{TRAINING}")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(path), kinds, str(steps)]
    return [sys.executable, "-m", "llmtop", "run", "--", sys.executable, *launch]


def test_the_rank_that_holds_the_other_up_waits_least(zygote: Zygote, tmp_path: Path) -> None:
    # For 0 steps they go on until it shows who waits for whom. They print in turns.
    printed = run_ranks(zygote, tmp_path / "train.py", TRAINING, ",".join(KINDS), "0").splitlines()
    by_rank = [read(line)["steps"] for line in printed if line.startswith("recorded: ")]
    chosen = [json.loads(line[8:].translate(BRACKETS)) for line in printed if "chosen:" in line]
    assert chosen[0] == chosen[1], "both have recorded the same steps"
    for kind, (begun, ended) in zip(KINDS, chosen[0], strict=True):
        parts = [steps[begun:ended] for steps in by_rank]
        waited, other = waits(parts[0]), waits(parts[1])
        assert waited - other > 0.025 * (ended - begun), (
            f"{kind}: rank 0 waits for rank 1, in {ended - begun} steps {waited} s, {other} s"
        )
    (begun, ended), *_ = chosen[0]
    assert sum(step.time("forward") for step in by_rank[1][begun:ended]) > (ended - begun) * 0.05
    for step in (step for steps in by_rank for step in steps):
        assert sum(seconds for path, (_, seconds) in step.phases.items() if "/" not in path) <= step.seconds


def waits(steps: list[Recorded]) -> float:
    """Seconds of communication in all of them, wherever it happened."""
    return sum(
        seconds for step in steps for path, (_, seconds) in step.phases.items() if path.endswith("communication")
    )


@pytest.fixture
def training(runtime_dir: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        torchrun(tmp_path / "train.py", "ddp", 100_000),
        env=environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.terminate()  # torchrun ends its workers
    process.wait(240)


@pytest.mark.slow("test_torchrun_s_two_ranks_beside_a_process_of_its_own finds the same fault")
def test_a_monitor_sees_two_ranks_and_no_launcher(training: subprocess.Popen[bytes], runtime_dir: Path) -> None:
    files = wait_for(
        lambda: [*client.discover(runtime_dir)] if len([*runtime_dir.glob("*.sock")]) == 2 else [],
        60,
        "two sockets, and none of torchrun itself",
    )
    hellos = []
    for file in files:
        with client.Connection.open(file.path, timeout_s=60) as connection:
            hellos.append(connection.hello)
            steps: list[wire.StepDone] = []
            wait_for(
                lambda connection=connection, steps=steps: (
                    steps.extend(
                        step
                        for message in connection.receive(1.0)
                        if isinstance(message, wire.Steps)
                        for step in message.steps
                    )
                    or steps
                ),
                30,
                "steps of a rank",
            )
            assert {"forward", "backward", "communication", "optimizer"} <= {p.name for p in steps[-1].phases}
    assert sorted((hello.rank, hello.local_rank, hello.world_size, hello.auto) for hello in hellos) == [
        (0, 0, 2, True),
        (1, 1, 2, True),
    ]
