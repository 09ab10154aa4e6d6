"""Reinforcement learning: rollouts and generated text are phases of the step that learns from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.instrument.auto.training.test_loops import MODEL
from tests.support.steps import Zygote, train

pytestmark = pytest.mark.torch

POLICY = (
    MODEL
    + """
import sys, types
LIBRARY
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters())
def act():
    policy.train(TRAINING_MODE)
    states = []
    with torch.no_grad():
        for _ in range(4):
            states.append(policy(torch.randn(8, 4)))
            time.sleep(0.01)  # the environment's step
    policy.train()
    return states
def NAME():
    return act()
for round in range(4):
    NAME()
    for _ in range(2):
        policy(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)


def policy(*, name: str, library: str = "", training_mode: bool = False) -> str:
    """A training that acts by a function of that name, having imported that module."""
    imported = f"sys.modules[{library!r}] = types.ModuleType({library!r})" if library else ""
    return POLICY.replace("LIBRARY", imported).replace("NAME", name).replace("TRAINING_MODE", str(training_mode))


@pytest.mark.parametrize(
    ("source", "phase"),
    [
        (policy(name="collect_rollouts"), "rollout"),
        (policy(name="play", library="gymnasium"), "rollout"),
        (policy(name="play", library="gymnasium", training_mode=True), "rollout"),
        (policy(name="evaluate_policy", library="gymnasium"), "evaluation"),
        (policy(name="estimate_loss"), "evaluation"),
    ],
    ids=["by its name", "by the library", "in training mode", "an evaluation of it", "an evaluation"],
)
def test_acting_is_a_rollout_and_no_evaluation(source: str, phase: str, zygote: Zygote, tmp_path: Path) -> None:
    found = zygote.train(tmp_path / "train.py", source)
    acting = {step.index: step for step in found["steps"] if phase in step.phases}
    assert list(acting) == [2, 4, 6]
    for step in acting.values():
        assert 0.03 <= step.time(phase) < step.seconds, "three steps of the environment lie between"
    other = {"rollout", "evaluation"} - {phase}
    assert not [step.index for step in found["steps"] if other & set(step.phases)]


TEXT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2))
optimizer = torch.optim.AdamW(model.parameters())
prompt = torch.randint(0, 64, (2, 4))
for number in range(6):
    text = prompt if number % 2 == 0 else model.generate(prompt, max_new_tokens=8, do_sample=True, pad_token_id=0)
    model(input_ids=text, labels=text).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("GENERATED", text.shape)
"""


@pytest.mark.slow(
    "loads transformers for itself; test_acting_is_a_rollout_and_no_evaluation has rollouts by a loop"
)
def test_generate_is_a_phase_of_a_training(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = train(tmp_path / "train.py", TEXT)
    assert not found["inference"]
    assert [step.index for step in found["steps"] if "generate" in step.phases] == [1, 3, 5]
    for step in found["steps"]:
        assert step.count("forward") == 1, "its own forward passes are not the training's"
        assert "evaluation" not in step.phases
    generating = [step for step in found["steps"] if "generate" in step.phases]
    shortest = min(step.time("forward") for step in generating)
    assert all(step.time("generate") > shortest for step in generating), "eight passes take longer than one"


SHAPES = {
    # What the model is called with, of a loader of batches of 4 samples with 6 parts each.
    "sequence first": "layer = nn.LSTM(3, 5); call = lambda b: layer(b.transpose(0, 1))[0].sum()",
    "nodes of graphs": "layer = nn.Linear(3, 5); call = lambda b: layer(b.reshape(-1, 3)).sum()",
    "two views": "layer = nn.Linear(3, 5); call = lambda b: (layer(b) + layer(b * 2)).sum()",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_are_those_of_the_loader_whatever_dimension_they_are(
    shape: str, zygote: Zygote, tmp_path: Path
) -> None:
    source = f"""{MODEL}
{SHAPES[shape]}
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for epoch in range(2):
    for (batch,) in DataLoader(TensorDataset(torch.randn(18, 6, 3)), batch_size=4):
        call(batch).backward()
        optimizer.step()
"""
    found = zygote.train(tmp_path / "train.py", source)
    assert [step.samples for step in found["steps"]] == [4, 4, 4, 2, 4, 4, 4, 4, 2]


def test_a_generator_and_its_critic_see_one_batch(zygote: Zygote, tmp_path: Path) -> None:
    source = f"""{MODEL}
generator, critic = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1))
of_generator, of_critic = (torch.optim.SGD(one.parameters(), lr=1e-3) for one in (generator, critic))
for (batch,) in DataLoader(TensorDataset(torch.randn(40, 3)), batch_size=4):
    critic(batch).sum().backward()
    critic(generator(torch.randn(7, 2)).detach()).sum().backward()
    of_critic.step()
    critic(generator(torch.randn(7, 2))).sum().backward()
    of_generator.step()
"""
    found = zygote.train(tmp_path / "train.py", source)
    assert {step.samples for step in found["steps"][2:]} == {4}


@pytest.mark.parametrize(
    "batches",
    [
        "[torch.randn(4, 3) for _ in range(8)]",
        "(b for b in DataLoader([torch.randn(4, 3)] * 8, batch_size=None))",
    ],
    ids=["no loader", "a loader that does not group"],
)
def test_without_the_size_of_a_batch_samples_are_absent(batches: str, zygote: Zygote, tmp_path: Path) -> None:
    source = f"""{MODEL}
layer = nn.Linear(3, 5)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for batch in {batches}:
    layer(batch).sum().backward()
    optimizer.step()
"""
    found = zygote.train(tmp_path / "train.py", source)
    assert len(found["steps"]) == 7
    assert {step.samples for step in found["steps"]} == {None}
