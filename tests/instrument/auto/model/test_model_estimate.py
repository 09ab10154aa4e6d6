"""Operations a token and the dtype, as hooks see them of a model that nobody describes; and the learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.place = nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([block(), block()])
        self.head = nn.Linear(16, 50, bias=False)
    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)

net = Net()
"""
LOOP = """
def train(model, steps=4, rate=0.1):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        loss = model(torch.randint(0, 50, (4, 8))).float().logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer

from llmtop.instrument.record.recorder import get
facts = get().facts

def until(step, seen):
    # What is looked for some times a second comes with some step.
    for _ in range(100_000):
        step()
        if seen():
            break
"""
MULTIPLIED = 2 * (16 * 64 + 64 + 64 * 16 + 16) + 16 * 50
"""Parameters of the model that a token is multiplied with: all but the two tables that rows are read from."""

ESTIMATED = {
    "plain": ("train(net)", "fp32"),
    "tied": ("net.head.weight = net.embed.weight\ntrain(net)", "fp32"),
    "in half as many bits": ("train(net.bfloat16())", "bf16"),
    "tf32": ("torch.set_float32_matmul_precision('high')\ntrain(net)", "tf32"),
    "autocast around the call": (
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    train(net)",
        "bf16",
    ),
    "autocast within the call": (
        "net.forward = torch.autocast('cpu', dtype=torch.bfloat16)(net.forward)\ntrain(net)",
        "bf16",
    ),
    "one part in more bits": (
        "class Careful(Block):\n"
        "    def forward(self, x):\n"
        "        with torch.autocast('cpu', enabled=False):\n"
        "            x = x + x.float() @ torch.zeros(16, 1)\n"
        "        return super().forward(x)\n"
        "net = Net(Careful)\n"
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    train(net)",
        "bf16",
    ),
    "compiled under autocast": (
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n    train(torch.compile(net, backend='aot_eager'))",
        "bf16",
    ),
    "compiled, with autocast within": (
        "net.forward = torch.autocast('cpu', dtype=torch.bfloat16)(net.forward)\n"
        "train(torch.compile(net, backend='aot_eager'))",
        None,
    ),
    "a table that nothing is multiplied with is frozen": ("net.place.requires_grad_(False)\ntrain(net)", "fp32"),
    "checkpointed": (
        "from torch.utils.checkpoint import checkpoint\n"
        "class Again(Block):\n"
        "    def forward(self, x):\n"
        "        return checkpoint(super().forward, x, use_reentrant=False)\n"
        "train(Net(Again))",
        "fp32",
    ),
    "evaluated between": (
        "optimizer = train(net, 2)\nwith torch.no_grad():\n    Net()(torch.zeros(1, 8, dtype=torch.int64))\n"
        "train(net, 2)",
        "fp32",
    ),
}
NOT_ESTIMATED = {
    "adapters": ("for block in net.blocks:\n    block.up.requires_grad_(False)\ntrain(net)", "are frozen"),
    "experts by name": (
        "class Routed(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.gate = nn.Linear(16, 2)\n"
        "        self.experts = nn.ModuleList([Block(), Block()])\n"
        "    def forward(self, x):\n"
        "        share = self.gate(x).softmax(-1)\n"
        "        return sum(share[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))\n"
        "train(Net(Routed))",
        "experts are routed",
    ),
    "experts by number": ("net.num_experts = 8\ntrain(net)", "experts are routed"),
    "encoder and decoder": (
        "class Config:\n    is_encoder_decoder = True\nnet.config = Config()\ntrain(net)",
        "encoder and decoder",
    ),
    "quantised": (
        "class Int8Linear(nn.Linear):\n    pass\nnet.head = Int8Linear(16, 50, bias=False)\ntrain(net)",
        "quantised or 8-bit types",
    ),
    "parameters of another kind": (
        "class Packed(nn.Parameter):\n    pass\nnet.head.weight = Packed(torch.randn(50, 16))\ntrain(net)",
        "type Packed",
    ),
    "two side by side": (
        "class Two(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body, self.head = nn.Sequential(nn.Embedding(50, 16), Block()), nn.Linear(16, 50)\n"
        "both = Two()\n"
        "optimizer = torch.optim.SGD(both.parameters(), lr=0.1)\n"
        "def step():\n"
        "    both.head(both.body(torch.randint(0, 50, (4, 8)))).logsumexp(-1).mean().backward()\n"
        "    optimizer.step()\n"
        "until(step, lambda: facts.flops_unknown)",
        "side by side",
    ),
}


def seen(zygote: Zygote, path: Path, script: str) -> dict[str, Any]:
    found = zygote.train(path, MODEL + LOOP + script)
    assert found["blind"] == {}
    assert len(found["steps"]) >= 2, "the first is not seen whole"
    return found


@pytest.mark.slow(
    "torch.compile itself",
    kept=(
        "plain",
        "tied",
        "in half as many bits",
        "tf32",
        "autocast around the call",
        "autocast within the call",
        "one part in more bits",
        "a table that nothing is multiplied with is frozen",
        "checkpointed",
        "evaluated between",
    ),
)
@pytest.mark.parametrize("kind", ESTIMATED)
def test_a_model_is_worth_six_operations_a_parameter(kind: str, zygote: Zygote, tmp_path: Path) -> None:
    script, dtype = ESTIMATED[kind]
    found = seen(zygote, tmp_path / "train.py", script)
    assert found["flops_per_token"] == 6 * MULTIPLIED
    assert found["flops_unknown"] is None
    assert found["dtype"] == dtype
    assert {step.tokens for step in found["steps"]} == {4 * 8}


@pytest.mark.parametrize("kind", NOT_ESTIMATED)
def test_where_an_estimate_would_mislead_there_is_none_and_it_is_said_why(
    kind: str, zygote: Zygote, tmp_path: Path
) -> None:
    script, why = NOT_ESTIMATED[kind]
    found = seen(zygote, tmp_path / "train.py", script)
    assert found["flops_per_token"] is None
    assert why in found["flops_unknown"]


def test_another_model_is_looked_at_when_it_trains(zygote: Zygote, tmp_path: Path) -> None:
    more = """
train(net)
assert facts.seen_dtype == "fp32"
small = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 4, bias=False)).bfloat16()
until(lambda: train(small), lambda: facts.seen_dtype == "bf16")
"""
    found = seen(zygote, tmp_path / "train.py", more)
    assert (found["flops_per_token"], found["dtype"]) == (6 * 64, "bf16")


SHARDED = """
import os
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", GLOO_SOCKET_IFNAME="lo")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
if SPLIT:
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
else:
    fully_shard(net, mesh=mesh)
train(net)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("split", [False, True], ids=["FSDP", "tensor parallel"])
def test_shards_count_whole_where_each_process_computes_with_all_of_them(
    split: bool, zygote: Zygote, tmp_path: Path
) -> None:
    found = seen(zygote, tmp_path / "train.py", f"SPLIT = {split}\n{SHARDED}")
    if split:
        assert found["flops_per_token"] is None
        assert "split over processes" in found["flops_unknown"]
    else:
        assert found["flops_per_token"] == 6 * MULTIPLIED
        assert found["flops_unknown"] is None


RATES = {
    "of the optimizer": ("train(net, rate=0.25)", {"lr": 0.25}),
    "as a tensor": ("train(net, rate=torch.tensor(0.25))", {"lr": 0.25}),
    "on a device": ("train(net, rate=0.25).param_groups[0]['lr'] = torch.empty((), device='meta')", {}),
    "of the script": ("llmtop.log(learning_rate=7.0)\ntrain(net, rate=0.25)", {"learning_rate": 7.0}),
    "of the script, later": (
        "optimizer = train(net, rate=0.25)\nrefresh = get().hooks.refresh\n"
        "refresh(True)\nllmtop.log(lr=7.0)\nrefresh(True)",
        {"lr": 7.0},
    ),
    "with steps of its own": (
        "optimizer = train(net)\n"
        "for _ in range(4):\n"
        "    with llmtop.step():\n"
        "        net(torch.zeros(1, 8, dtype=torch.int64)).sum().backward()\n"
        "        optimizer.step()",
        {},
    ),
}


@pytest.mark.parametrize("kind", RATES)
def test_the_learning_rate_is_the_optimizers_unless_something_logs_one(
    kind: str, zygote: Zygote, tmp_path: Path
) -> None:
    script, metrics = RATES[kind]
    # Held, so that there is one to ask.
    held = script if "optimizer = " in script else script.replace("train(", "optimizer = train(", 1)
    if kind == "on a device":
        held = (
            "optimizer = train(net, rate=0.25)\noptimizer.param_groups[0]['lr'] = torch.empty((), device='meta')"
        )
    found = seen(zygote, tmp_path / "train.py", f"import llmtop\n{held}")
    assert found["metrics"] == metrics
