"""Plain PyTorch loops under `llmtop run`: steps and phases without a line of llmtop in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.steps import Zygote, train

pytestmark = pytest.mark.torch


MODEL = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    def forward(self, ids):
        return self.body(self.embed(ids)).mean()

net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
ids = torch.randint(0, 50, (40, 12))
"""
PARTS = {"dataload", "forward", "backward", "optimizer"}


def test_a_plain_loop_has_its_steps_phases_and_tokens(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
for (batch,) in DataLoader(TensorDataset(ids), batch_size=4):
    loss = net(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    assert found["auto"]
    assert found["left_out"] == {}
    # The very first step is not recorded: the model is known from its backward pass on.
    assert [step.index for step in found["steps"]] == list(range(1, 10))
    for step in found["steps"]:
        assert set(step.phases) == PARTS
        assert all(step.count(part) == 1 for part in PARTS)
        assert sum(step.time(part) for part in PARTS) <= step.seconds
        assert (step.samples, step.tokens) == (4, 48)


def test_accumulated_batches_are_one_step(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
for number, (batch,) in enumerate(DataLoader(TensorDataset(ids), batch_size=2)):
    net(batch).backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
    )
    assert len(found["steps"]) == 4
    for step in found["steps"]:
        assert [step.count(part) for part in ("dataload", "forward", "backward", "optimizer")] == [4, 4, 4, 1]
        assert (step.samples, step.tokens) == (8, 96)


@pytest.mark.slow("test_an_evaluation_is_a_phase_of_the_step_that_follows finds the same fault")
def test_an_evaluation_between_steps_is_in_no_other_phase(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
train, held_out = (DataLoader(TensorDataset(ids), batch_size=size) for size in (4, 20))
for epoch in range(2):
    for number, (batch,) in enumerate(train):
        net(batch).backward()
        optimizer.step()
        if number == 4:
            net.eval()
            with torch.no_grad():
                for (batch,) in held_out:
                    net(batch)
                    time.sleep(0.4)
            net.train()
    time.sleep(0.5)  # a checkpoint
""",
    )
    steps = found["steps"]
    assert len(steps) == 19
    assert [number for number, step in enumerate(steps) if step.time("evaluation") >= 0.8] == [4, 14], "its sleeps"
    assert steps[9].interval - steps[8].seconds >= 0.5, "a checkpoint lies between steps"
    assert all(step.count("dataload") == 1 for step in found["steps"])


def test_a_slow_loader_shows_as_dataload(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.01)
        return ids[index]

for workers in (0, 2):
    for batch in DataLoader(Slow(), batch_size=4, num_workers=workers):
        net(batch).backward()
        optimizer.step()
""",
    )
    in_process = found["steps"][:5]
    assert all(step.time("dataload") >= 0.04 for step in in_process)
    assert len(found["steps"]) == 11
    # The first batch of the workers is waited for, with what it takes to start them.
    assert found["steps"][5].time("dataload") >= 0.04


def test_a_closure_is_not_optimizer_time(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
def closure():
    optimizer.zero_grad()
    loss = net(ids)
    loss.backward()
    return loss
for _ in range(4):
    optimizer.step(closure)
""",
    )
    assert len(found["steps"]) == 3
    for step in found["steps"]:
        assert set(step.phases) == {"forward", "backward", "optimizer"}
        assert step.count("forward") == step.count("backward") >= 2


def test_optimizers_within_the_backward_pass_end_a_step_with_it(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
def step(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in net.parameters():
    p.register_post_accumulate_grad_hook(step)
for _ in range(5):
    net(ids).backward()
""",
    )
    assert len(found["steps"]) == 4
    assert all(set(step.phases) == {"forward", "backward"} for step in found["steps"])


def test_what_is_called_below_a_module_that_never_is_counts_as_forward(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleDict({"first": net, "second": Net()})
    def loss(self):
        return self.nets["first"](ids) + self.nets["second"](ids)

holder = Holder()
for _ in range(6):
    holder.loss().backward()
    optimizer.step()
""",
    )
    assert [step.count("forward") for step in found["steps"][1:]] == [2] * 4


def test_an_exception_in_any_part_leaves_the_next_steps_right(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
class Weak(torch.optim.SGD):
    count = 0
    @torch.no_grad()
    def step(self, closure=None):
        type(self).count += 1
        if self.count in (3, 7):
            raise ValueError
        return super().step(closure)

optimizer = Weak(net.parameters(), lr=0.1)
for number in range(14):
    try:
        if number == 4:
            net(torch.zeros(2))
        loss = net(ids)
        if number == 5:
            loss.detach().backward()
        loss.backward()
        optimizer.step()
    except (ValueError, RuntimeError):
        pass
""",
    )
    assert found["left_out"] == {}
    assert [
        tuple(step.count(part) for part in ("forward", "backward", "optimizer")) for step in found["steps"][-4:]
    ] == [(1, 1, 1)] * 4


def test_a_script_with_steps_of_its_own_is_left_to_itself(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        """
import llmtop
"""
        + MODEL
        + """
net(ids).backward(); optimizer.step()       # a trial before the loop
net(ids).backward()
for _ in range(5):
    with llmtop.step(tokens=7):
        with llmtop.phase("all of it"):
            net(ids).backward()
        optimizer.step()
""",
    )
    own = [step for step in found["steps"] if step.tokens == 7]
    assert len(own) == 5 or (len(own) == 4 and len(found["steps"]) == 4)
    assert all(set(step.phases) == {"all of it"} for step in own)


def test_a_training_in_a_thread_and_recomputed_activations_are_seen(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
import threading
from torch.utils.checkpoint import checkpoint
class Saving(Net):
    def forward(self, ids):
        return checkpoint(self.body, self.embed(ids), use_reentrant=True).mean()
net = Saving()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def run():
    for (batch,) in DataLoader(TensorDataset(ids), batch_size=4):
        net(batch).backward()
        optimizer.step()
thread = threading.Thread(target=run)
thread.start()
thread.join()
""",
    )
    assert found["left_out"] == {}
    assert len(found["steps"]) == 9
    assert all(set(step.phases) == PARTS and step.count("backward") == 1 for step in found["steps"][1:])


def test_checkpoints_and_copies_of_the_model_know_nothing_of_it(zygote: Zygote, tmp_path: Path) -> None:
    zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
import copy, io, pickle
for _ in range(3):
    net(ids).backward()
    optimizer.step()
for kept in (net, copy.deepcopy(net), optimizer, DataLoader(TensorDataset(ids))):
    assert b"llmtop" not in pickle.dumps(kept)
assert not net._forward_hooks and not net._forward_pre_hooks
from torch import fx
operations = [node.op for node in fx.symbolic_trace(net).graph.nodes]
assert operations[:3] == ["placeholder", "call_module", "call_module"], operations
""",
    )


def test_copies_of_a_batch_to_a_device_are_counted_and_no_others(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
# There is no CUDA here: the device "meta" stands for it, which torch copies to in the same calls.
from llmtop.instrument import auto
from llmtop.instrument.auto.training import transfers
transfers.time_copies_to("meta", auto.install())
there = torch.empty(4, 12, dtype=torch.int64, device="meta")

class Moving(Net):
    def forward(self, ids):
        ids.to("meta")
        return super().forward(ids)

net = Moving()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(ids), batch_size=4):
    batch.to("meta"), batch.to(torch.device("meta"), non_blocking=True), batch.to(device="meta"), batch.to(there)
    there.copy_(batch)
    batch.to("cpu"), batch.to(torch.float32), there.to("meta"), batch.copy_(batch)
    net(batch).backward()
    optimizer.step()
""",
    )
    assert len(found["steps"]) == 9
    assert all(step.count("h2d") == 5 for step in found["steps"])
    assert all("forward/h2d" not in step.phases for step in found["steps"])


def test_a_second_model_is_found_when_it_takes_over(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
for _ in range(4):
    net(ids).backward()
    optimizer.step()
class Other(Net):
    pass
other = nn.Sequential(Other())
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for _ in range(6):
    other(ids).backward()
    optimizer.step()
""",
    )
    assert [step.count("forward") for step in found["steps"]] == [1] * 9


@pytest.mark.slow("a second start of torch, for a training that llmtop leaves alone")
def test_no_auto_leaves_the_training_as_it_is(runtime_dir: Path, tmp_path: Path) -> None:
    found = train(
        tmp_path / "train.py",
        MODEL
        + """
import sys
for _ in range(3):
    net(ids).backward()
    optimizer.step()
assert not [name for name in sys.modules if name.startswith("llmtop")]
assert torch.autograd.backward.__module__ == "torch.autograd"
""",
        "--no-auto",
    )
    assert not found["attached"]
