"""A training that finishes no step for long and works all the same is not stalled; one that hangs in it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.trainings import source as steps_module
from collectors.trainings import training as training_module
from collectors.trainings.source import StepsSource
from llmtop.model.snapshot import Rank
from tests.support.installed import needs
from tests.support.processes import wait_for
from tests.support.trainings import Training

STALLED = 4.0
LONG = 8.0

# One more sign at a time than a monitor can wait for, in a test's seconds; the work goes on until a line comes.
_BEGIN = """
import select, sys, time
from llmtop.instrument.serve import signs_of_life
signs_of_life.LIFE_S = 0.2

def more():
    time.sleep(0.02)
    return not select.select([sys.stdin], [], [], 0)[0]
"""
_STEPS = """
import llmtop
for _ in range(20):
    with llmtop.step():
        time.sleep(0.01)
"""
_TORCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from llmtop.instrument import auto
from tests.support.light_optimizer import LightSGD
auto.install()
net = torch.nn.Linear(4, 1)
optimizer = LightSGD(net.parameters(), lr=0.1)
data = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=2)
net.train()
for (batch,) in data:
    net(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
net.eval()
"""
_TRAINER = """
import tempfile, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from llmtop.integrations.transformers import LlmtopCallback
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
ids = torch.randint(0, 64, (16,))
data = [{"input_ids": ids, "labels": ids} for _ in range(8)]
class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while more():
            yield data[0]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=4, eval_strategy="steps", eval_steps=4,
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=data, eval_dataset=Endless(), callbacks=[LlmtopCallback()]).train()
"""
_LIGHTNING = """
import torch, warnings
warnings.simplefilter("ignore")
import lightning.pytorch as pl
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from llmtop.integrations.lightning import LlmtopProfiler

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.net(batch[0]).square().mean()
    def validation_step(self, batch, number):
        pass
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Endless(IterableDataset):
    def __iter__(self):
        while more():
            yield torch.zeros(4)

pl.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    profiler=LlmtopProfiler(), enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
).fit(Module(), DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4), DataLoader(Endless(), batch_size=2))
"""

WORK = {
    "loader": _STEPS
    + """
def batches():
    while more():
        yield 1
for _ in llmtop.loader(batches()):
    pass
""",
    "phases": _STEPS
    + """
while more():
    with llmtop.phase("validation"):
        with llmtop.phase("forward"):
            pass
""",
    "hooks, a DataLoader": _TORCH
    + """
with torch.no_grad():
    while more():
        for _ in data:
            pass
""",
    "hooks, forwards alone": _TORCH
    + """
with torch.no_grad():
    while more():
        net(torch.zeros(2, 4))
""",
    "steps by hand beside hooks": _TORCH
    + _STEPS
    + """
while more():
    for _ in data:
        pass
""",
    "Trainer": _TRAINER,
    "Lightning": _LIGHTNING,
}


@pytest.fixture
def source(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepsSource]:
    monkeypatch.setattr(steps_module, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(training_module, "STALLED_SECONDS", STALLED)
    source = StepsSource(runtime_dir)
    source.start()
    yield source
    source.close()


def _rank(source: StepsSource) -> Rank | None:
    return next(iter(source.latest().ranks), None)


def _lives(rank: Rank) -> bool:
    """Return True if it is told as running. One without a sign for `STALLED` seconds need not be: a busy machine
    may hold it up for so long."""
    late = rank.last_work_at is not None and time.time() - rank.last_work_at > STALLED
    return rank.state == "running" or late


@pytest.mark.slow("each waits for a hang; test_a_step_in_which_phases_begin_is_no_stall has one such sign")
@pytest.mark.parametrize("work", WORK)
def test_any_work_that_is_seen_is_life_and_a_hang_after_it_is_none(
    work: str, source: StepsSource, runtime_dir: Path
) -> None:
    for library in ("transformers", "lightning"):
        if library in WORK[work]:
            needs(library)
    with Training(_BEGIN + WORK[work] + "\ntime.sleep(1000)\n") as training:

        def worked_long() -> bool:
            rank = _rank(source)
            if rank is None or rank.last_step_at is None:
                assert training.poll() is None, training.communicate(timeout=240)
                return False
            if rank.last_work_at is None:
                return False  # a busy machine takes its time from the last step to the first batch
            assert _lives(rank)
            return rank.last_work_at - rank.last_step_at > LONG

        wait_for(worked_long, 120, work)
        # One that comes now is told at once.
        second = StepsSource(runtime_dir)
        second.start()
        rank = wait_for(lambda: next((one for one in second.latest().ranks if one.last_step_at), None))
        second.close()
        assert _lives(rank)
        training.go()
        wait_for(lambda: (one := _rank(source)) is not None and one.state == "stalled", 60, "hangs after work")


@pytest.mark.slow("waits for a hang; test_a_process_that_steps_no_more_is_stalled has a shorter limit")
def test_a_training_that_hangs_without_any_work_gives_no_sign(source: StepsSource) -> None:
    with Training(_BEGIN + _STEPS + "\nwhile more():\n    pass\ntime.sleep(1000)\n"):
        stalled = wait_for(lambda: (one := _rank(source)) is not None and one.state == "stalled" and one, 60)
        assert stalled.last_work_at is None


def test_a_step_in_which_phases_begin_is_no_stall(source: StepsSource) -> None:
    script = (
        _STEPS
        + "\nwith llmtop.step():\n    while more():\n        with llmtop.phase('chunk'):\n            pass\n"
    )
    with Training(_BEGIN + script + "time.sleep(1000)\n") as training:

        def worked_long() -> bool:
            rank = _rank(source)
            if rank is None or rank.last_step_at is None:
                return False
            if rank.last_work_at is None:
                return False  # a busy machine takes its time from the last step to the first batch
            assert _lives(rank)
            return rank.last_work_at - rank.last_step_at > LONG

        wait_for(worked_long, 60)
        training.go()
        wait_for(lambda: (one := _rank(source)) is not None and one.step == 20, 60)
