"""Hugging Face Trainer, with the callback and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.steps import train

pytest.importorskip("transformers")
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


@pytest.mark.parametrize("callback", [False, True], ids=["no change", "callback"])
def test_a_trainer_publishes_its_steps(callback: bool, tmp_path: Path) -> None:
    options = ("--no-auto", "--no-kineto") if callback else ()  # the callback alone is enough
    found = train(tmp_path / "train.py", (CALLBACK if callback else "CALLBACKS = []\n") + TRAINING, *options)
    assert found["auto"]
    assert found["left_out"] == {}
    steps = found["steps"]
    # The callback knows of the first step before its first backward pass.
    assert [step.index for step in steps] == list(range(0 if callback else 1, 6))
    assert found["total_steps"] == (6 if callback else None)
    assert ("loss" in found["metrics"] and "learning_rate" in found["metrics"]) == callback
    for step in steps[1:]:
        assert [step.count(name) for name in ("forward", "backward", "optimizer")] == [2, 2, 1]
        assert (step.tokens, step.samples) == (2 * 4 * 16, 8)
        assert step.seconds < 0.8, "an evaluation belongs to no step"
    assert sum(step.count("dataload") for step in steps) >= 9, "accelerate fetches a batch ahead"
