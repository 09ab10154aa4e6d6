"""Two ranks over gloo: which of them the others wait for, and that finding out changes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collectors.trainings.source import StepsSource
from llmtop.model.snapshot import Alert, Host, Rank, Snapshot
from llmtop.rules.engine import Rules
from tests.support.forked_ranks import run_ranks, running_ranks
from tests.support.processes import core_waits, wait_for, waited_since
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

TRAINING = """
import sys, time, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
kind, seconds = sys.argv[1], float(sys.argv[2])
dist.init_process_group(**GROUP)
late = dist.get_rank() == 1
net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
if kind == "fsdp2":
    mesh = init_device_mesh("cpu", (2,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
else:
    net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x = torch.randn(64, 256)
if kind == "by hand":
    import llmtop
while True:
    if late:
        time.sleep(seconds)
    if kind == "by hand":
        with llmtop.step():
            with llmtop.phase("forward"):
                loss = net(x).square().mean()
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    else:
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
"""One rank sleeps before its forward. "by hand" names its phases, and runs without `llmtop run`."""


class Monitor:
    """What a monitor says of the trainings in a directory, looked at again and again."""

    def __init__(self, source: StepsSource) -> None:
        self._source, self._rules, self._time = source, Rules(), 1000.0
        self.ranks: tuple[Rank, ...] = ()
        self.accused: list[Alert] = []
        self._since: dict[int, tuple[float, dict[str, float]]] = {}
        """pid -> (when it was first seen, what its threads had waited for a core by then)"""

    def look(self) -> Monitor:
        """Look once more, half a second later by the clock of what is judged."""
        self._time += 0.5
        self.ranks = self._source.latest().ranks
        for rank in self.ranks:
            self._since.setdefault(rank.pid, (time.monotonic(), core_waits(rank.pid)))
        snapshot = Snapshot(time=self._time, host=Host(name="here"), ranks=self.ranks)
        self.accused += [alert for alert in self._rules.apply(snapshot).alerts if alert.id == "straggler"]
        return self

    def compared(self, steps: int) -> bool:
        """Whether the ranks have been compared over so many steps."""
        return len(self.ranks) == 2 and all(
            any(arrival.steps >= steps for arrival in rank.arrivals or ()) for rank in self.ranks
        )

    def without_core_pct(self) -> dict[int, float]:
        """Of each rank, by pid, the share of the time for which the machine had no core for it."""
        return {
            pid: 100 * waited_since(before, pid) / (time.monotonic() - since)
            for pid, (since, before) in self._since.items()
        }


@contextmanager
def watched(zygote: Zygote, directory: Path, script: Path, *arguments: str) -> Iterator[Monitor]:
    source = StepsSource(directory)
    with running_ranks(zygote, script, TRAINING, *arguments, LLMTOP_DIR=str(directory)):
        source.start()
        try:
            yield Monitor(source)
        finally:
            source.close()


@pytest.mark.slow(
    "two ranks and a monitor; test_the_rank_that_holds_the_other_up_waits_least finds the same fault"
)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "by hand"])
def test_the_rank_that_comes_last_is_named(
    kind: str, request: pytest.FixtureRequest, runtime_dir: Path, tmp_path: Path
) -> None:
    below: Zygote = request.getfixturevalue("bare_zygote" if kind == "by hand" else "zygote")
    with watched(below, runtime_dir, tmp_path / "train.py", kind, "0.1") as monitor:
        wait_for(lambda: monitor.look().accused, 60, "an accused rank")
    alert, by_pid = monitor.accused[0], {rank.pid: rank.rank for rank in monitor.ranks}
    assert alert.evidence["rank"] == 1
    assert by_pid[alert.pid] == 1
    points = {
        "ddp": {"first_gradient", "last_gradient"},
        "fsdp2": {"forward", "waits"},
    }
    assert kind == "by hand" or alert.evidence["point"] in points[kind]
    assert alert.evidence["share_of_step_pct"] > 4


@pytest.mark.slow("test_equal_ranks_are_never_accused finds the same fault")
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_nobody_is_accused_among_equal_ranks(kind: str, zygote: Zygote, runtime_dir: Path, tmp_path: Path) -> None:
    with watched(zygote, runtime_dir, tmp_path / "train.py", kind, "0") as monitor:
        wait_for(lambda: monitor.look().compared(24), 60, "ranks that are compared over many steps")
        without_core = monitor.without_core_pct()
    # Beside other programs two ranks are not equal: who is given a core later is late, and it is right to say so.
    # An accusation is wrong if the machine has held nobody up for even half of what it says.
    noise_pct = max(without_core.values())
    wrong = [alert for alert in monitor.accused if noise_pct < 0.5 * alert.evidence["share_of_step_pct"]]
    assert wrong == [], without_core


UNCHANGED = """
import hashlib, json, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
torch.set_num_threads(1)
kind, with_llmtop = sys.argv[1], sys.argv[2] == "yes"
dist.init_process_group(**GROUP)
if with_llmtop:  # each step is sampled, from the first on that can be
    from llmtop.instrument.arrival import sampler
    from llmtop.instrument.record import periodic, recorder
    sampler.EVERY_NS, periodic.PERIOD_NS = 1, 1
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
ddp = nn.parallel.DistributedDataParallel(net)
model = torch.compile(ddp, backend="aot_eager") if kind == "compiled" else ddp
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
digest, fired = hashlib.sha256(), []
own = next(net.parameters()).register_post_accumulate_grad_hook(lambda _: fired.append(1))

def train(steps):
    for _ in range(steps):
        model(torch.randn(16, 64)).square().mean().backward()
        for parameter in net.parameters():
            digest.update(parameter.grad.numpy().tobytes())
        optimizer.step()
        optimizer.zero_grad()

train(12)
before = recorder.get().arrivals.samples.count if with_llmtop else 0
if kind == "power":
    state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=4)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
elif kind == "built-in":
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
train(20)
found = {"digest": digest.hexdigest(), "fired": len(fired), "graphs": counters["stats"].get("unique_graphs"),
         "breaks": sum(counters["graph_break"].values()), "frames": counters["frames"].get("ok"),
         "recompiles": sum(counters["recompiles"].values()) if "recompiles" in counters else 0,
         "hooks": sum(len(p._post_accumulate_grad_hooks or ()) for p in net.parameters())}
sampled = []
if with_llmtop:
    samples = recorder.get().arrivals.samples
    sampled = [samples.count - before, sorted(samples.read(0)[1][-1].host_ns)]
if dist.get_rank() == 0:
    print(json.dumps([found, sampled]), flush=True)
dist.barrier()  # gloo's threads may end a rank by abort() that goes while the other still speaks to it
dist.destroy_process_group()
"""


def unchanged(zygote: Zygote, script: Path, kind: str, *, with_llmtop: bool) -> list[Any]:
    said = run_ranks(zygote, script, UNCHANGED, kind, "yes" if with_llmtop else "no")
    found: list[Any] = json.loads(next(line for line in said.splitlines() if line.startswith("[")))
    return found


@pytest.mark.slow("one kind stands for all; each trains twice", kept=("power",))
@pytest.mark.parametrize("kind", ["power", "built-in", "compiled"])
def test_sampling_takes_no_hook_and_changes_no_bit(
    kind: str, bare_zygote: Zygote, zygote: Zygote, tmp_path: Path
) -> None:
    without, _ = unchanged(bare_zygote, tmp_path / "train.py", kind, with_llmtop=False)
    within, (samples, stamps) = unchanged(zygote, tmp_path / "train.py", kind, with_llmtop=True)
    assert within == without
    assert within["hooks"] == 1, "the script's own"
    assert samples >= 18, "llmtop looked on all the while"
    assert stamps == ["backward", "end", "first_gradient", "forward", "last_gradient"]
