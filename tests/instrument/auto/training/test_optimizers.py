"""Which optimizer's step ends a step of the training, where there are several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.odd_model import MODEL, PARTS
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch


@pytest.mark.slow(
    "two of four ways; each trains",
    kept=(
        "copies-1",
        "the same parameters-4",
    ),
)
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


@pytest.mark.parametrize("inner_ids", ["the last one's", "its own"])
def test_the_inner_optimizers_of_meta_learning_are_not_told_by_their_ids(
    inner_ids: str, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + f"""
kept, last = [optimizer], None
def made(parameters):
    others = []
    for _ in range(20):  # an id comes again where its memory is free, as a rule at once
        inner = torch.optim.SGD(parameters, lr=0.01)
        if {inner_ids == "its own"}:
            kept.append(inner)
            return inner
        if last in (None, id(inner)):
            return inner
        others.append(inner)
    return inner
for _ in range(8):
    for task in range(4):
        learner = copy.deepcopy(net)
        inner = None
        inner = made(list(learner.parameters()))
        last = id(inner)
        for _ in range(4):
            inner.zero_grad()
            learner(ids[task * 4 : task * 4 + 4]).backward()
            inner.step()
    for p, q in zip(net.parameters(), learner.parameters()):
        p.grad = q.grad
    optimizer.step()
""",
    )
    assert [step.count("backward") for step in found["steps"]] == [1, 1, 1, 12, *[16] * 7]


def test_optimizers_that_take_turns_make_one_step_together(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
other = Net()
second = torch.optim.SGD(other.parameters(), lr=0.1)
for _ in range(6):
    (net(ids) + other(ids).detach()).backward()
    optimizer.step()
    other(ids).backward()
    second.step()
""",
    )
    # one step more at the start, before the second optimizer was known
    assert len(found["steps"]) == 6
    assert all(step.count("optimizer") == step.count("backward") == 2 for step in found["steps"][1:])


def test_a_new_optimizer_is_not_taken_for_a_dead_one_whose_id_it_has(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
def train(stepped, times):
    for _ in range(times):
        net(ids).backward()
        stepped.step()
train(optimizer, 3)
second = torch.optim.SGD(net.parameters(), lr=0.1)
train(second, 3)
import weakref
dead, alive = id(optimizer), weakref.ref(optimizer)
del optimizer
assert alive() is None, "somebody holds it"
kept = []
for _ in range(1000):  # an id comes again where its memory is free, as a rule at once
    again = torch.optim.SGD(net.parameters(), lr=0.1)
    if id(again) == dead:
        break
    kept.append(again)
train(again, 5)
""",
    )
    assert len(found["steps"]) == 3 + 3 + 5 - 1, "all but the first of all, which began before anybody looked"


FOLDS = """
del optimizer
def fold(steps):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(ids[:4]).backward()
        optimizer.step()
    return net, optimizer
"""


@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_a_new_training_counts_from_its_first_step_beside_the_last_ones_optimizer(
    steps: int, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(tmp_path / "train.py", MODEL + FOLDS + f"kept = [fold({steps}) for _ in range(5)]\n")
    assert len(found["steps"]) == 5 * steps - 1
    assert all(step.count(part) == 1 for step in found["steps"] for part in PARTS)


def test_an_optimizer_that_is_never_used_holds_up_no_training(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL + "kept = [optimizer]\n" + FOLDS + "kept += [fold(6) for _ in range(4)]\n",
    )
    assert len(found["steps"]) == 4 * 6 - 1


def test_a_second_gan_counts_from_its_first_round_beside_the_first_ones_optimizers(
    zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
def gan(rounds):
    nets = Net(), Net()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for _ in range(rounds):
        for net, optimizer in zip(nets, optimizers):
            net(ids[:4]).backward()
            optimizer.step()
    return optimizers
kept = [gan(10) for _ in range(3)]
""",
    )
    # one step more at the start of each, before its second optimizer was known; the first of all is not recorded
    assert len(found["steps"]) == 3 * 11 - 1
    counts = [step.count("optimizer") for step in found["steps"]]
    assert counts == ([1, 1, *[2] * 9] * 3)[1:]


@pytest.mark.slow(
    "two of six ways; each trains",
    kept=(
        "at the start-3",
        "when its turn comes-7",
    ),
)
@pytest.mark.parametrize("local_steps", [2, 3, 7])
@pytest.mark.parametrize("made", ["at the start", "when its turn comes"])
def test_trainings_in_turns_count_each_step_of_each(
    local_steps: int, made: str, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + f"""
del optimizer
class Client:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def train(self):
        for _ in range({local_steps}):
            self.net(ids[:4]).backward()
            self.optimizer.step()
clients = [Client() for _ in range(4)] if {made == "at the start"} else [None] * 4
for round in range(6):
    for number in range(4):
        clients[number] = clients[number] or Client()
        clients[number].train()
    with torch.no_grad():
        for each in zip(*(client.net.parameters() for client in clients)):
            mean = torch.stack(each).mean(0)
            for p in each:
                p.copy_(mean)
""",
    )
    assert len(found["steps"]) == 6 * 4 * local_steps - 1
    assert all(step.count(part) == 1 for step in found["steps"] for part in PARTS)


def test_the_longer_part_of_a_round_of_two_is_a_step_with_the_other(zygote: Zygote, tmp_path: Path) -> None:
    """As a WGAN's: five steps of the critic for one of the generator."""
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
other = Net()
second = torch.optim.SGD(other.parameters(), lr=0.1)
for _ in range(6):
    for _ in range(5):
        net(ids[:4]).backward()
        optimizer.step()
    other(ids[:4]).backward()
    second.step()
""",
    )
    assert [step.count("optimizer") for step in found["steps"][-5:]] == [6] * 5
    assert len(found["steps"]) == 5 - 1 + 6


@pytest.mark.slow("one length stands for both", kept=("3",))
@pytest.mark.parametrize("inner_steps", [3, 10])
def test_a_training_after_meta_learning_counts_beside_the_outer_optimizer(
    inner_steps: int, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + f"""
kept = []
for _ in range(12):
    for task in range(3):
        learner = copy.deepcopy(net)
        inner = torch.optim.SGD(learner.parameters(), lr=0.01)
        kept.append(inner)  # so that none is told by its end
        for _ in range({inner_steps}):
            inner.zero_grad()
            learner(ids[task * 4 : task * 4 + 4]).backward()
            inner.step()
    for p, q in zip(net.parameters(), learner.parameters()):
        p.grad = q.grad
    optimizer.step()
tuned = torch.optim.SGD(net.parameters(), lr=0.01)
train(100, tuned)
""",
    )
    backwards = [step.count("backward") for step in found["steps"]]
    first = inner_steps - 1 if inner_steps <= 4 else 3 * inner_steps - 1
    rounds = [3 * inner_steps] * 11
    assert backwards[first + 1 : first + 12] == rounds
    # what the new one did before it was believed is told as one step
    tuned = backwards[first + 12 :]
    assert sum(tuned) == 100
    assert tuned[0] <= 2 * inner_steps + 5
    assert tuned[1:] == [1] * (len(tuned) - 1)
