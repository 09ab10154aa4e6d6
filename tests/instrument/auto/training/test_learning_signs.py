"""The gradient norm and the loss scale of trainings that log neither, or both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

LOOP = """
import llmtop, torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
torch.manual_seed(0)
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
norms = []
for number in range(6):
    optimizer.zero_grad()
    scaler.scale(net(torch.randn(4, 8)).pow(2).mean()).backward()
    scaler.unscale_(optimizer)
    norms.append(float(clip_grad_norm_(net.parameters(), 1.0)))
    scaler.step(optimizer)
    scaler.update()
    LOG
print("norms:", norms)
"""


def _norms(stdout: str) -> list[float]:
    return json.loads(stdout.split("norms: ")[1].splitlines()[0])


def test_the_norm_and_the_scale_are_read_where_the_script_logs_neither(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(tmp_path / "train.py", LOOP.replace("LOG", "pass"))
    logged: dict[str, list[float]] = {}
    for _step, name, value in found["logged"]:
        logged.setdefault(name, []).append(value)
    told = _norms(found["stdout"])
    assert logged["grad_norm"] == pytest.approx(told[-len(logged["grad_norm"]) :])
    assert len(logged["grad_norm"]) >= 5  # the first step begins before the process publishes
    assert logged["loss_scale"][-1] == 128.0
    assert found["metrics"]["loss_scale"] == 128.0


def test_the_script_s_own_norm_is_the_only_one(zygote: Zygote, tmp_path: Path) -> None:
    log = "llmtop.log(gnorm=norms[-1], loss_scale=-1.0)"
    found = zygote.train(tmp_path / "train.py", LOOP.replace("LOG", log))
    assert "grad_norm" not in found["metrics"]
    assert found["metrics"]["loss_scale"] == -1.0
    own = [value for _, name, value in found["logged"] if name == "gnorm"]
    assert own == _norms(found["stdout"])
    assert [value for _, name, value in found["logged"] if name == "loss_scale"][-1] == -1.0


COMPILED = """
import torch
from torch import nn
net = nn.Linear(8, 1)
def clipped(x):
    net(x).sum().backward()
    return torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
def norm(x):
    grads = [x, x * 2]
    for one, grad in zip(parameters, grads): one.grad = grad
    return torch.nn.utils.clip_grad_norm_(parameters, 1.0)
parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))]
explained = torch._dynamo.explain(norm)(torch.ones(3))
print("graphs:", explained.graph_count, explained.graph_break_count)
"""


@pytest.mark.slow("torch.compile itself")
def test_a_compiled_clip_has_the_same_graphs(zygote: Zygote, bare_zygote: Zygote, tmp_path: Path) -> None:
    outputs = []
    for one in (zygote, bare_zygote):
        path = tmp_path / f"{len(outputs)}.py"
        one.start(path, COMPILED)
        outputs.append(one.end(path)[0])
    assert "graphs:" in outputs[0]
    assert outputs[0] == outputs[1]
