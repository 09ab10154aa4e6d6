"""Hugging Face Trainer, with the callback and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.installed import needs
from tests.support.steps import train

needs("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("runtime_dir")]

TRAINING = """
import tempfile, time, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
ids = torch.randint(0, 64, (16,))
data = [{"input_ids": ids, "labels": ids} for _ in range(48)]
class Slow(list):
    def __getitem__(self, index):
        time.sleep(0.1)  # an evaluation takes longer than any step
        return super().__getitem__(index)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2,
    num_train_epochs=1, eval_strategy="steps", eval_steps=3, logging_steps=1, save_strategy="no", report_to=[],
    use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=Slow(data[:8]), callbacks=CALLBACKS)
trainer.train()
"""
CALLBACK = "from llmtop.integrations.transformers import LlmtopCallback\nCALLBACKS = [LlmtopCallback()]\n"


@pytest.mark.slow("test_a_trainer_tells_its_steps_and_what_it_logs finds the same fault")
@pytest.mark.parametrize("how", ["no change", "callback", "both"])
def test_a_trainer_publishes_its_steps(how: str, tmp_path: Path) -> None:
    callback = how != "no change"
    options = ("--no-auto", "--no-kineto") if how == "callback" else ()  # the callback alone is enough
    found = train(tmp_path / "train.py", (CALLBACK if callback else "CALLBACKS = []\n") + TRAINING, *options)
    assert found["auto"]
    assert found["left_out"] == {}
    steps = found["steps"]
    # The callback knows of the first step before its first backward pass.
    assert [step.index for step in steps] == list(range(0 if callback else 1, 6))
    assert found["total_steps"] == 6
    assert {"loss", "learning_rate", "grad_norm", "epoch"} <= found["metrics"].keys()
    for step in steps[1:]:
        assert [step.count(name) for name in ("forward", "backward", "optimizer")] == [2, 2, 1]
        assert (step.tokens, step.samples) == (2 * 4 * 16, 8)
    assert sum(step.time("evaluation") >= 0.8 for step in steps) == 1, "an evaluation with its sleeps"
    assert sum(step.count("dataload") for step in steps) >= 9, "accelerate fetches a batch ahead"


@pytest.mark.slow("test_a_trainer_tells_its_steps_and_what_it_logs finds the same fault")
def test_a_callback_is_copied_and_a_trainer_that_raised_is_forgotten(tmp_path: Path) -> None:
    source = (
        CALLBACK
        + TRAINING.replace("trainer.train()\n", "")
        + """
import copy, pickle
class Failing(list):
    def __getitem__(self, index):
        raise OSError("the disk")
trainer.train_dataset = Failing(data)
try:
    trainer.train()
except OSError:
    pass
trainer.train_dataset = data
original = model.forward
calls = []
def weak(*args, **kwargs):
    calls.append(1)
    if len(calls) == 6:
        raise ValueError
    return original(*args, **kwargs)
model.forward = weak
try:
    trainer.train()
except ValueError:
    pass
del model.forward
for used in CALLBACKS:
    assert type(pickle.loads(pickle.dumps(used))) is type(copy.deepcopy(used)) is type(used)
    assert b"recorder" not in pickle.dumps(used)
from llmtop.instrument.record.recorder import get
before = get().ring.count
plain = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
for _ in range(8):
    plain(torch.randn(2, 2)).sum().backward()
    optimizer.step()
print("plain", get().ring.count - before)
"""
    )
    found = train(tmp_path / "train.py", source, "--no-auto", "--no-kineto")
    line = next(line for line in found["stdout"].splitlines() if line.startswith("plain"))
    assert int(line.split()[1]) >= 3, "after the Trainer's own, and a new optimizer's first four"
