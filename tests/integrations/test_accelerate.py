"""Hugging Face Accelerate's loop, with the tracker and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed import needs
from tests.support.steps import train

needs("accelerate")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("runtime_dir")]

TRAINING = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **MORE)
accelerator.init_trackers("project", config={"rate": 0.1})
net = torch.nn.Linear(4, 1)
net, optimizer, data = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.1), DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=4)
)
for number, (batch,) in enumerate(data):
    with accelerator.accumulate(net):
        loss = net(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.log({"loss": loss.item()}, step=number)
accelerator.end_training()
"""
TRACKER = """
from llmtop.integrations.accelerate import LlmtopTracker
MORE = {"log_with": LlmtopTracker(total_steps=6)}
"""


@pytest.mark.slow("a real framework; test_a_trainer_tells_its_steps_and_what_it_logs has Trainer's steps")
@pytest.mark.parametrize("how", ["no change", "tracker", "both"])
def test_an_accelerated_loop_publishes_its_steps(how: str, tmp_path: Path) -> None:
    tracker = how != "no change"
    found = train(
        tmp_path / "train.py",
        (TRACKER if tracker else "MORE = {}\n") + TRAINING,
        *(["--no-auto", "--no-kineto"] if how == "tracker" else []),
    )
    assert found["auto"]
    assert found["left_out"] == {}
    assert found["total_steps"] == (6 if tracker else None)
    assert found["metrics"].keys() == {"loss", "lr"}
    assert [step.index for step in found["steps"]] == list(range(1, 6))
    for step in found["steps"]:
        assert [step.count(name) for name in ("forward", "backward", "optimizer")] == [2, 2, 1]
        assert step.count("dataload") >= 1
        assert step.samples == 8
