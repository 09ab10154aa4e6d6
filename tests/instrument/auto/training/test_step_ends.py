"""What ends a step of the training beside an optimizer's step, and what does not; optimizers that raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.odd_model import MODEL, PARTS
from tests.support.steps import Recorded, Zygote

pytestmark = pytest.mark.torch


def untimed(step: Recorded) -> float:
    """Return the seconds of a step in none of its phases. A sleep there lasts at least as long as is asked."""
    return step.seconds - sum(step.time(part) for part in step.phases)


IN_PLACE = {
    "clamped weights": (
        """
for _ in range(10):
    net(ids).backward()
    optimizer.step()
    with torch.no_grad():
        for p in net.parameters():
            p.clamp_(-0.01, 0.01)
""",
        9,
    ),
    "SAM": (
        """
for number in range(24):
    net(ids).backward()
    with torch.no_grad():
        moved = [p.grad * 0.05 for p in net.parameters()]
        for p, by in zip(net.parameters(), moved):
            p.add_(by)
    optimizer.zero_grad()
    net(ids).backward()
    with torch.no_grad():
        for p, by in zip(net.parameters(), moved):
            p.sub_(by)
    optimizer.step()
""",
        24,
    ),
    "an optimizer of the script's own": (
        """
for _ in range(12):
    net(ids).backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.01 * p.grad
            p.grad = None
""",
        10,
    ),
    "one that writes to p.data": (
        """
for _ in range(12):
    net.zero_grad()
    net(ids).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.01)
""",
        10,
    ),
    "the same, gradients set to zero after the forward pass": (
        """
for _ in range(12):
    loss = net(ids)
    net.zero_grad(set_to_none=False)
    loss.backward()
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.01)
""",
        10,
    ),
    "the same, four passes a step": (
        """
for number in range(48):
    if number % 4 == 0:
        net.zero_grad()
    net(ids).backward()
    if number % 4 == 3:
        for p in net.parameters():
            p.data.add_(p.grad, alpha=-0.01)
""",
        10,
    ),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_a_changed_parameter_is_a_step_only_where_no_optimizer_steps(
    kind: str, zygote: Zygote, tmp_path: Path
) -> None:
    source, steps = IN_PLACE[kind]
    assert len(zygote.train(tmp_path / "train.py", MODEL + source)["steps"]) == steps


def test_gradients_by_autograd_grad_are_seen_from_the_optimizers_step_on(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
optimizer.step()  # prepares, and steps nothing
for _ in range(8):
    for p, grad in zip(net.parameters(), torch.autograd.grad(net(ids), list(net.parameters()))):
        p.grad = grad
    optimizer.step()
""",
    )
    assert [step.index for step in found["steps"]] == list(range(1, 8))
    assert all(set(step.phases) == {"forward", "optimizer"} for step in found["steps"])


def test_that_steps_cannot_be_told_is_said_until_they_can(zygote: Zygote, tmp_path: Path) -> None:
    source = """
def by_hand(times):
    for _ in range(times):
        net(ids[:2]).backward()
        for p in net.parameters():
            p.data.add_(p.grad, alpha=-0.01)
by_hand(120)
"""
    found = zygote.train(tmp_path / "train.py", MODEL + source)
    assert found["steps"] == []
    assert list(found["blind"]) == ["the steps of this script"]
    assert "llmtop.step()" in found["blind"]["the steps of this script"]
    found = zygote.train(tmp_path / "train.py", MODEL + source + "train(3)\n")
    assert len(found["steps"]) == 2
    assert found["blind"] == {}


def test_an_optimizer_that_raised_hides_nothing_that_follows(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
class Weak(torch.optim.SGD):
    count = 0
    @torch.no_grad()
    def step(self, closure=None):
        type(self).count += 1
        if self.count == 3:
            raise ValueError
        return super().step(closure)
optimizer = Weak(net.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(ids), batch_size=4):
    net(batch).backward()
    try:
        optimizer.step()
    except ValueError:
        time.sleep(0.2)
""",
    )
    assert len(found["steps"]) == 8
    counts = [tuple(step.count(part) for part in ("dataload", "forward", "backward")) for step in found["steps"]]
    assert counts == [(1, 1, 1), (2, 2, 2), *[(1, 1, 1)] * 6]
    assert untimed(found["steps"][1]) >= 0.2, "what failed is none of the optimizer's time"


def test_an_optimizer_that_left_the_game_does_not_hold_up_the_steps(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
second = torch.optim.SGD([next(net.parameters())], lr=0.1)
net(ids).backward(); optimizer.step(); second.step()
for _ in range(100):
    net(ids).backward()
    optimizer.step()
""",
    )
    assert len(found["steps"]) > 30


WEAK = """
class Weak(torch.optim.SGD):
    calls = 0
    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        if self.calls % 3 == 0:
            raise ValueError
        return super().step(closure)
def retried(optimizer):
    try:
        optimizer.step()
    except ValueError:
        time.sleep(0.2)
        optimizer.step()
"""


@pytest.mark.slow("one kind of parent class stands for both", kept=("whose own is told too",))
@pytest.mark.parametrize("parent", ["whose own is told too", "whose own is not"])
def test_an_optimizer_that_raised_and_steps_when_tried_again_ends_the_step(
    parent: str, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        (MODEL if parent == "whose own is told too" else MODEL.replace("optim.SGD", "optim.Adam"))
        + WEAK
        + """
weak = Weak(net.parameters(), lr=0.1)
for _ in range(12):
    net(ids[:4]).backward()
    retried(weak)
""",
    )
    assert len(found["steps"]) == 11
    assert all(step.count(part) == 1 for step in found["steps"] for part in PARTS)
    assert all(untimed(step) >= 0.2 for step in found["steps"][1::2]), (
        "what failed is none of the optimizer's time"
    )
    assert found["left_out"] == {}


def test_an_optimizer_that_raised_does_not_hide_the_step_of_another(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + WEAK
        + """
other = Net()
weak = Weak(other.parameters(), lr=0.1)
for _ in range(12):
    other(ids[:4]).backward()
    try:
        weak.step()
    except ValueError:
        time.sleep(0.2)
    (net(ids[:4]) * 0).backward()
    optimizer.step()
""",
    )
    assert [step.count("backward") for step in found["steps"][1:]] == [2] * 11
    assert all(untimed(step) >= 0.2 for step in found["steps"][2::3]), (
        "what failed is none of the optimizer's time"
    )


def test_an_optimizer_whose_inner_one_raised_and_was_tried_again_ends_the_step(
    zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + WEAK
        + """
class Holding(torch.optim.Optimizer):
    def __init__(self, held):
        super().__init__([p for group in held.param_groups for p in group["params"]], {})
        self.held = held
    def step(self, closure=None):
        retried(self.held)
holding = Holding(Weak(net.parameters(), lr=0.1))
for _ in range(12):
    net(ids[:4]).backward()
    holding.step()
""",
    )
    assert len(found["steps"]) == 11
    assert all(set(step.phases) == PARTS for step in found["steps"])
    assert all(step.count(part) == 1 for step in found["steps"] for part in PARTS)


def test_a_closure_that_raised_leaves_nothing_open_when_it_is_tried_again(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
calls = 0
def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = net(ids)
    loss.backward()
    if calls % 3 == 0:
        raise ValueError
    return loss
for _ in range(12):
    try:
        optimizer.step(closure)
    except ValueError:
        optimizer.step(closure)
""",
    )
    assert len(found["steps"]) == 11
    assert all(set(step.phases) == PARTS for step in found["steps"])
    assert found["left_out"] == {}
