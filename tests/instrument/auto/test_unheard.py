"""What the script listens with hears nothing of llmtop's: modes of torch's, while each step is sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.forked_ranks import run_ranks
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

LISTENS = """
import json, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
torch.set_num_threads(1)
kind, with_llmtop = sys.argv[1], sys.argv[2] == "yes"
dist.init_process_group(**GROUP)
if with_llmtop:  # each step is sampled, from the first on that can be
    from llmtop.instrument.arrival import sampler
    from llmtop.instrument.record import periodic, recorder
    sampler.EVERY_NS, periodic.PERIOD_NS = 1, 1
heard = []

class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        heard.append(getattr(function, "__qualname__", str(function).split(" object")[0]))
        return function(*args, **(kwargs or {}))

class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        heard.append(str(function))
        return function(*args, **(kwargs or {}))

net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
model = nn.parallel.DistributedDataParallel(net) if kind == "ddp" else fully_shard(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Functions(), Operations():
    for _ in range(20):
        model(torch.ones(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
sampled = recorder.get().arrivals.samples.count if with_llmtop else 0
if dist.get_rank() == 0:
    print(json.dumps([{name: heard.count(name) for name in sorted(set(heard))}, sampled]), flush=True)
dist.barrier()  # the rank that ends first closes connections that the other may still read from
dist.destroy_process_group()
"""


def heard(zygote: Zygote, script: Path, kind: str, *, with_llmtop: bool) -> tuple[dict[str, int], int]:
    said = run_ranks(zygote, script, LISTENS, kind, "yes" if with_llmtop else "no")
    operations, sampled = json.loads(next(line for line in said.splitlines() if line.startswith("[")))
    return operations, sampled


@pytest.mark.slow("one kind stands for both; each trains twice", kept=("ddp",))
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_modes_hear_of_the_training_alone(kind: str, bare_zygote: Zygote, zygote: Zygote, tmp_path: Path) -> None:
    without, _ = heard(bare_zygote, tmp_path / "train.py", kind, with_llmtop=False)
    within, sampled = heard(zygote, tmp_path / "train.py", kind, with_llmtop=True)
    assert sampled >= 8
    assert within == without
