"""Checkpoints that real functions write: step, path, duration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

LOOP = """
import io, json, torch, time
from torch import nn
import torch.distributed.checkpoint as dcp
import safetensors.torch
net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
for _ in range(8):
    step()
FOLDER = {folder!r}
{save}
from llmtop.instrument.record import recorder
deadline = time.monotonic() + 20
while len(recorder.get().saved.read()) < {count} and time.monotonic() < deadline:
    time.sleep(0.02)
print("saved:", json.dumps([one._asdict() for one in recorder.get().saved.read()]))
"""


def _saved(zygote: Zygote, tmp_path: Path, save: str, count: int = 1) -> list[dict[str, Any]]:
    source = LOOP.format(folder=str(tmp_path), save=save, count=count)
    output = zygote.train(tmp_path / "train.py", source)["stdout"]
    found: list[dict[str, Any]] = json.loads(output.split("saved: ")[1].splitlines()[0])
    return found


@pytest.mark.parametrize(
    ("save", "name", "function"),
    [
        ("torch.save(net.state_dict(), FOLDER + '/m.pt')", "m.pt", "torch.save"),
        ("torch.save(net.state_dict(), open(FOLDER + '/o.pt', 'wb'))", "o.pt", "torch.save"),
        ("safetensors.torch.save_file(net.state_dict(), FOLDER + '/m.safetensors')", "m.safetensors", "save_file"),
        ("dcp.save(net.state_dict(), checkpoint_id=FOLDER + '/dcp')", "dcp", "save"),
    ],
)
def test_a_checkpoint_has_its_step_and_its_path(
    save: str, name: str, function: str, zygote: Zygote, tmp_path: Path
) -> None:
    (one,) = _saved(zygote, tmp_path, save)
    assert (one["step"], one["path"], one["function"]) == (7, str(tmp_path / name), function)
    assert 0 < one["blocked_ns"] <= one["taken_ns"]


def test_what_is_saved_into_memory_or_fails_is_no_checkpoint(zygote: Zygote, tmp_path: Path) -> None:
    save = """
torch.save(net.state_dict(), io.BytesIO())
try:
    torch.save(net.state_dict(), FOLDER + "/no/such/folder/m.pt")
except Exception:
    pass
torch.save(net.state_dict(), FOLDER + "/m.pt")
"""
    found = _saved(zygote, tmp_path, save)
    assert [Path(one["path"]).name for one in found] == ["m.pt"]
