"""Which optimizer's step, or what else, ends a step of the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.odd_model import MODEL
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch


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
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_a_changed_parameter_is_a_step_only_where_no_optimizer_steps(
    kind: str, zygote: Zygote, tmp_path: Path
) -> None:
    source, steps = IN_PLACE[kind]
    assert len(zygote.train(tmp_path / "train.py", MODEL + source)["steps"]) == steps


@pytest.mark.parametrize("inner_steps", [1, 4])
@pytest.mark.parametrize("same", [False, True], ids=["copies", "the same parameters"])
def test_the_outer_optimizer_closes_the_steps_of_meta_learning(
    inner_steps: int, same: bool, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + f"""
outer = optimizer
for _ in range(25):
    total = [torch.zeros_like(p) for p in net.parameters()]
    for task in range(4):
        learner = net if {same} else copy.deepcopy(net)
        inner = torch.optim.SGD(learner.parameters(), lr=0.01)
        for _ in range({inner_steps}):
            inner.zero_grad()
            learner(ids[task * 4 : task * 4 + 4]).backward()
            inner.step()
        total = [sum + p.grad for sum, p in zip(total, learner.parameters())]
    for p, sum in zip(net.parameters(), total):
        p.grad = sum
    outer.step()
""",
    )
    if same:
        assert all(step.count("backward") == 4 * inner_steps for step in found["steps"][-23:])
    else:
        assert len(found["steps"]) == inner_steps - 1 + 25, "the first inner loop's, and then each outer one"
        assert all(step.count("backward") == 4 * inner_steps for step in found["steps"][-24:])


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
            p.grad = None
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
    assert all(step.time("optimizer") < 0.2 for step in found["steps"])
