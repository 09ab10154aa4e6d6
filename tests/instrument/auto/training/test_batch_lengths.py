"""Tokens without padding, read off the batches of loaders."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path

import pytest

from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

LOOP = """
import llmtop, torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
lengths = [3, 5, 7, 9] * 6
def collated(batch):
    mask = torch.arange(16)[None, :] < torch.tensor(batch)[:, None]
    return {"input_ids": torch.zeros(len(batch), 16, dtype=torch.int64), "attention_mask": mask.to(torch.int64)}
net = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in DataLoader(lengths, batch_size=4, collate_fn=collated):
    net(batch["input_ids"]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    LOG
batch["attention_mask"].resize_(2, 2)
"""


def test_tokens_without_padding_are_published_and_the_script_s_own_stay(zygote: Zygote, tmp_path: Path) -> None:
    assert zygote.train(tmp_path / "train.py", LOOP.replace("LOG", "pass"))["metrics"]["batch_tokens"] == 24.0
    own = zygote.train(tmp_path / "own.py", LOOP.replace("LOG", "llmtop.log(batch_tokens=5.0)"))
    assert own["metrics"]["batch_tokens"] == 5.0


class Lazy(dict[str, object]):
    def get(self, *_: object) -> object:
        raise AssertionError("called")

    __getitem__ = get


def test_lengths_and_masks_of_other_forms() -> None:
    torch = pytest.importorskip("torch")
    from llmtop.instrument.auto.training.batch_lengths import batch_tokens

    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert batch_tokens({"attention_mask": mask.bool()}) == 3
    assert batch_tokens({"attention_mask": mask, "lengths": torch.tensor([2, 2], dtype=torch.int32)}) == 4
    assert batch_tokens({"cu_seqlens": torch.tensor([0, 3, 9], dtype=torch.int32)}) == 9
    assert batch_tokens(UserDict(attention_mask=mask)) == 3
    assert batch_tokens(Lazy(attention_mask=mask)) == 3, "a method of the script's own class is not called"
    unread_ones = (
        {"attention_mask": mask.t()},
        {"lengths": [2, 2]},
        {"attention_mask": mask.float()},
        (mask,),
        {},
    )
    for unread in unread_ones:
        assert batch_tokens(unread) is None
    with torch.overrides.TorchFunctionMode():
        assert batch_tokens({"attention_mask": mask}) is None
