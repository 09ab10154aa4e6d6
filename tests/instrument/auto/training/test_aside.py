"""Evaluations and checkpoints between the steps of a training: phases of the step that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.instrument.auto.training.test_loops import MODEL
from tests.support.steps import Recorded, Zygote

pytestmark = pytest.mark.torch

USUAL = {"dataload", "forward", "backward", "optimizer"}
DATA = """
train, held_out = (DataLoader(TensorDataset(ids), batch_size=size) for size in (4, 10))
def learn(batch):
    net(batch).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def with_phase(found: list[Recorded], name: str) -> dict[int, float]:
    """Seconds of that phase in each step that has it."""
    return {step.index: step.time(name) for step in found if name in step.phases}


EVALUATIONS = {
    "a loader": "for (batch,) in held_out: net(batch), time.sleep(0.02)",
    "a list": "for batch in ids.split(10): net(batch), time.sleep(0.02)",
    "averaged weights": "for (batch,) in held_out: time.sleep(0.02), copy(batch)",
    "one batch": "net(next(iter(held_out))[0]), time.sleep(0.07), net(ids)",
    "a loader of llmtop's": "for batch in llmtop.loader(list(ids.split(10))): net(batch), time.sleep(0.02)",
}


@pytest.mark.slow(
    "one evaluation after and one before a step; each trains",
    kept=(
        "a loader-after",
        "averaged weights-before",
    ),
)
@pytest.mark.parametrize(
    ("evaluate", "where"),
    [
        *((name, "after") for name in EVALUATIONS),
        # A forward between a batch and its training may be part of the step, where no loader says else.
        *((name, "before") for name in ("a loader", "averaged weights", "a loader of llmtop's")),
    ],
)
def test_an_evaluation_is_a_phase_of_the_step_that_follows(
    evaluate: str, where: str, zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + DATA
        + f"""
import copy as copies, llmtop
copy = copies.deepcopy(net)
def evaluate():
    net.eval()
    copy.eval()
    with torch.no_grad():
        {EVALUATIONS[evaluate]}
    net.train()

for epoch in range(3):
    for number, (batch,) in enumerate(train):
        if "{where}" == "before" and number % 5 == 3:
            evaluate()
        learn(batch)
        if "{where}" == "after" and number % 5 == 2:
            evaluate()
""",
    )
    times = with_phase(found["steps"], "evaluation")
    # The second batch of another iterator is the sign where the module is another object; else the first forward.
    assert list(times) == [3, 8, 13, 18, 23, 28]
    assert all(seconds >= 0.06 for seconds in times.values()), "three sleeps lie between four forwards"
    for step in found["steps"]:
        assert set(step.phases) - {"evaluation"} == USUAL
        assert step.count("dataload") == 1, "the waits of an evaluation are part of it"
        assert sum(step.time(path) for path in step.phases) <= step.seconds
    assert found["left_out"] == {}


@pytest.mark.parametrize(
    "step",
    [
        "with torch.no_grad(): target = teacher(batch)\n    learn(batch)",
        "with torch.no_grad(): net(batch)\n    learn(batch)",
        "net.eval()\n    with torch.no_grad(): net(batch)\n    net.train()\n    learn(batch)",
        "net(batch).backward()\n    with torch.no_grad(): teacher(batch)\n    optimizer.step()",
        "optimizer.zero_grad(); (net(batch) + net(batch)).backward()\n    optimizer.step()",
    ],
    ids=["teacher", "pseudo-labels", "own mode", "within", "two forwards"],
)
def test_a_forward_without_gradients_that_is_part_of_a_step_is_no_evaluation(
    step: str, zygote: Zygote, tmp_path: Path
) -> None:
    source = f"""
import copy
teacher = copy.deepcopy(net).eval()
learn(ids[:4])
def one(batch):
    {step}
for epoch in range(2):
    for (batch,) in train:
        one(batch)
"""
    found = zygote.train(tmp_path / "train.py", MODEL + DATA + source)
    assert with_phase(found["steps"], "evaluation") == {}
    assert len(found["steps"]) == 20
    assert all(set(one.phases) >= USUAL for one in found["steps"])


def test_two_networks_and_accumulated_batches_are_no_evaluation(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + """
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 16)
    def forward(self, z):
        return self.layer(z)
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)
    def forward(self, x):
        return self.layer(x).mean()
generator, critic = Generator(), Critic()
of_generator, of_critic = (torch.optim.SGD(m.parameters(), lr=1e-3) for m in (generator, critic))
for (batch,) in DataLoader(TensorDataset(torch.randn(80, 16)), batch_size=4):
    with torch.no_grad():
        made = generator(torch.randn(4, 4))
    (critic(batch) - critic(made)).backward()
    of_critic.step()
    critic(generator(torch.randn(4, 4))).backward()
    of_generator.step()
""",
    )
    assert len(found["steps"]) >= 18
    assert all("evaluation" not in step.phases for step in found["steps"])


@pytest.mark.slow("test_phases_come_in_the_order_in_which_they_happen finds the same fault")
def test_what_is_saved_is_a_checkpoint_of_the_step_that_follows(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + DATA
        + """
import inspect, io, pickle
import torch.distributed.checkpoint as dcp
import safetensors.torch

class Slow(io.BytesIO):
    def write(self, data):
        time.sleep(0.01)
        return super().write(data)

for epoch in range(2):
    for number, (batch,) in enumerate(train):
        learn(batch)
        if number == 4:
            torch.save(net.state_dict(), Slow())
        elif number == 5:
            torch.save(net.state_dict(), Slow())
            torch.save(optimizer.state_dict(), Slow())
        elif number == 6:
            # A file of its own: it is put in its place by renaming, also over a device.
            safetensors.torch.save_file(net.state_dict(), f"{__file__}.safetensors")
        elif number == 7 and epoch == 0:
            try:
                torch.save(lambda: None, Slow())
            except (pickle.PicklingError, AttributeError):
                pass
assert pickle.loads(pickle.dumps(torch.save)) is torch.save is torch.serialization.save
assert list(inspect.signature(torch.save).parameters)[:2] == ["obj", "f"]
assert "def save(" in inspect.getsource(torch.save)
""",
    )
    counts = {step.index: step.count("checkpoint") for step in found["steps"] if "checkpoint" in step.phases}
    assert counts == {5: 1, 6: 2, 7: 1, 8: 1, 15: 1, 16: 2, 17: 1}
    assert all(
        seconds >= 0.01 for index, seconds in with_phase(found["steps"], "checkpoint").items() if index % 10 < 7
    )
    assert all(set(step.phases) - {"checkpoint"} == USUAL for step in found["steps"])


def test_where_the_script_names_its_steps_or_what_it_does_hooks_add_nothing(
    zygote: Zygote, tmp_path: Path
) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + DATA
        + """
import io, llmtop
for number, (batch,) in enumerate(train):
    learn(batch)
    with llmtop.phase("validate"), torch.no_grad():
        net.eval()
        for (batch,) in held_out:
            net(batch)
        net.train()
    with llmtop.phase("keep"):
        torch.save(net.state_dict(), io.BytesIO())
""",
    )
    assert len(found["steps"]) == 9
    for step in found["steps"]:
        assert set(step.phases) == {*USUAL, "validate", "validate/dataload", "keep"}
        assert (step.count("dataload"), step.count("validate/dataload")) == (1, 4)

    by_hand = zygote.train(
        tmp_path / "by_hand.py",
        MODEL
        + DATA
        + """
import io, llmtop
for number, (batch,) in enumerate(train):
    with llmtop.step(), llmtop.phase("all"):
        learn(batch)
    net.eval()
    with torch.no_grad():
        net(batch)
    net.train()
    torch.save(net.state_dict(), io.BytesIO())
""",
    )
    assert [set(step.phases) for step in by_hand["steps"][1:]] == [{"all"}] * 9


def test_phases_come_in_the_order_in_which_they_happen(zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(
        tmp_path / "train.py",
        MODEL
        + DATA
        + """
import io
for epoch in range(3):
    for number, (batch,) in enumerate(train):
        learn(batch)
        if number % 5 == 2:
            net.eval()
            with torch.no_grad():
                for (batch,) in held_out:
                    net(batch)
            net.train()
            torch.save(net.state_dict(), io.BytesIO())
time.sleep(0.3)  # the order is looked at some times a second
learn(ids[:4]); learn(ids[:4])
""",
    )
    usual = ["dataload", "forward", "backward", "optimizer"]
    assert {tuple(path for path in step.phases if path in usual) for step in found["steps"][:-2]} == {tuple(usual)}
    both = [list(step.phases) for step in found["steps"] if "checkpoint" in step.phases]
    assert both == [["evaluation", "checkpoint", *usual]] * 6
