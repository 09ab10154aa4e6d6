"""What a monitor is told of Trainer, Lightning and Accelerate below `llmtop run`, without a word in the script.

Each program trains, says what its library knows itself, and waits; then a monitor connects and must hear the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtop.protocol import wire
from tests.support.processes import environment
from tests.support.trainings import Heard, connect

pytestmark = pytest.mark.torch

SAYING = """
import json, logging, os, sys, tempfile, warnings
warnings.simplefilter("ignore")
import torch

def say(**what):
    print("says: " + json.dumps(what), flush=True)
    sys.stdin.readline()
"""

TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
out = tempfile.mkdtemp()
ids = torch.randint(0, 64, (16,))
data = [{"input_ids": ids, "labels": ids} for _ in range(48)]

class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 5

class Rewards(Trainer):  # as TRL's trainers do
    def log(self, logs, *args, **kwargs):
        super().log({**logs, "rewards/margins": 0.25}, *args, **kwargs)

def fit(resume=None, callbacks=(), **more):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(output_dir=out, per_device_train_batch_size=4, report_to=[], use_cpu=True,
                                  disable_tqdm=True, **{"save_strategy": "no", **more})
    trainer = Rewards(model, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=list(callbacks))
    before = list(trainer.callback_handler.callbacks)
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.callback_handler.callbacks == before
    logged = {}
    for entry in trainer.state.log_history:
        logged.update(entry)
    logged.pop("step", None)
    say(total=trainer.state.max_steps, index=trainer.state.global_step - 1, logged=logged,
        rate=trainer.optimizer.param_groups[0]["lr"], epoch=trainer.state.epoch)

fit(num_train_epochs=2, gradient_accumulation_steps=4, logging_strategy="no")
fit(num_train_epochs=1, logging_steps=2, eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=8)
fit(num_train_epochs=1, logging_steps=2, callbacks=[Stops()])
fit(resume=os.path.join(out, "checkpoint-8"), num_train_epochs=1, logging_steps=1)
"""

LIGHTNING = """
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
logging.getLogger("lightning.pytorch").setLevel("ERROR")
data = DataLoader(TensorDataset(torch.randn(52, 4)), batch_size=4)  # thirteen batches

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    def training_step(self, batch, number):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        if self.trainer.global_step == self.trainer.model.stops_at:
            self.trainer.should_stop = True
        return loss
    stops_at = -1
    def validation_step(self, batch, number):
        self.log("held_out", self.net(batch[0]).square().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.125)

class Two(Module):
    automatic_optimization = False
    def training_step(self, batch, number):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.net(batch[0]).square().mean())
            optimizer.step()
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.125) for part in self.net]

def fit(module, **more):
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, **{"logger": False, **more},
    )
    before = list(trainer.callbacks)
    trainer.fit(module, data, data)
    assert trainer.callbacks == before
    say(index=trainer.global_step - 1, epoch=trainer.current_epoch,
        logged={name: value.item() for name, value in trainer.callback_metrics.items()})

fit(Module(), max_epochs=2, accumulate_grad_batches=4)
fit(Module(), max_steps=5, logger=pl.loggers.CSVLogger(tempfile.mkdtemp()))
early = Module()
early.stops_at = 3
fit(early, max_epochs=3)
fit(Two(), max_epochs=1)
"""

ACCELERATE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model = torch.nn.Linear(4, 1)
rows = DataLoader(TensorDataset(torch.randn(96, 4)), batch_size=4)
net, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.125), rows)
for log in (False, True):
    for number, (batch,) in enumerate(data):
        with accelerator.accumulate(net):
            loss = net(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if log:
            accelerator.log({"loss": loss.detach(), "number": number, "nowhere": torch.empty((), device="meta"),
                             "words": "none"}, step=number)
    say(loss=loss.item())
"""


class Program:
    """Runs below `llmtop run`."""

    def __init__(self, path: Path, source: str, directory: Path) -> None:
        self._directory = directory
        path.write_text(SAYING + source)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "run", "--", sys.executable, str(path)],
            env=environment(OMP_NUM_THREADS="1", LLMTOP_DIR=str(directory)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(path.parent / "stderr").open("w"),
            text=True,
        )
        self._errors = path.parent / "stderr"

    def says(self) -> dict[str, Any]:
        """What it says of its next training."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("says: "):
                found: dict[str, Any] = json.loads(line.removeprefix("says: "))
                return found
        raise AssertionError(self._errors.read_text()[-2000:])

    def heard(self, condition: Callable[[Heard], object]) -> Heard:
        """What a monitor hears that comes now, as soon as that holds."""
        heard = Heard(connect(self._directory, self.process))
        try:
            return heard.until(lambda: heard.steps and condition(heard))
        finally:
            heard.connection.close()

    def goes_on(self) -> None:
        """Let it train again, or end."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def start(tmp_path: Path, runtime_dir: Path) -> Iterator[Callable[[str], Program]]:
    """Starts one."""
    started: list[Program] = []

    def program(source: str) -> Program:
        started.append(Program(tmp_path / "train.py", source, runtime_dir))
        return started[-1]

    yield program
    for one in started:
        one.process.kill()
        one.process.communicate(timeout=240)


def hello(heard: Heard) -> wire.Hello:
    """The last one."""
    said = [message for message in heard.messages if isinstance(message, wire.Hello)]
    return said[-1] if said else heard.connection.hello


def has(heard: Heard, wanted: dict[str, float]) -> bool:
    """Whether these are the metrics that it was told of last, as far as they are wanted."""
    return all(heard.metrics.get(name) == pytest.approx(value) for name, value in wanted.items())


def numbers(logged: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in logged.items() if isinstance(value, (int, float))}


def test_a_trainer_tells_its_steps_and_what_it_logs(start: Callable[[str], Program]) -> None:
    pytest.importorskip("transformers")
    program = start(TRAINER)

    said = program.says()  # four batches a step, nothing logged
    heard = program.heard(lambda heard: "learning_rate" in heard.metrics)
    assert said["total"] == 6
    assert (hello(heard).total_steps, hello(heard).accumulation_steps) == (6, 4)
    assert [step.index for step in heard.steps] == [1, 2, 3, 4, 5]
    assert {step.tokens for step in heard.steps} == {4 * 4 * 16}
    assert "loss" not in heard.metrics
    assert has(heard, {"learning_rate": said["rate"], "epoch": said["epoch"]})
    assert hello(heard).note is None

    program.goes_on()
    said = program.says()  # a second Trainer, with logs and evaluations, one batch a step
    heard = program.heard(lambda heard: has(heard, numbers(said["logged"])))
    assert {
        "rewards/margins",
        "loss",
        "grad_norm",
        "learning_rate",
        "eval_loss",
        "train_loss",
        "epoch",
    } <= heard.metrics.keys()
    assert (hello(heard).total_steps, hello(heard).accumulation_steps) == (12, 1)
    assert [step.index for step in heard.steps][5:] == list(range(12)), "counted anew, from its first step on"
    assert {step.tokens for step in heard.steps[5:]} == {4 * 16}

    program.goes_on()
    said = program.says()  # ends before its time
    logged = numbers(said["logged"])
    logged.pop("grad_norm")  # that of the last logged step: the norm of each step is read, so a later one is known
    heard = program.heard(lambda heard: has(heard, logged))
    assert said["index"] == 4
    assert [step.index for step in heard.steps][17:] == list(range(5))
    assert hello(heard).total_steps == 12

    program.goes_on()
    said = program.says()  # goes on from a checkpoint
    heard = program.heard(lambda heard: has(heard, numbers(said["logged"])))
    assert [step.index for step in heard.steps][22:] == [8, 9, 10, 11]
    assert hello(heard).total_steps == 12
    assert "step" not in heard.metrics


@pytest.mark.slow("a real framework; test_a_trainer_tells_its_steps_and_what_it_logs has Trainer's steps")
def test_lightning_tells_its_steps_and_what_it_logs(start: Callable[[str], Program]) -> None:
    pytest.importorskip("lightning")
    program = start(LIGHTNING)

    said = program.says()  # thirteen batches, four a step
    heard = program.heard(lambda heard: has(heard, said["logged"]))
    assert {"loss", "held_out"} <= said["logged"].keys()
    assert has(heard, {"lr": 0.125, "epoch": said["epoch"]})
    assert said["index"] == 7
    assert (hello(heard).total_steps, hello(heard).accumulation_steps) == (8, 4)
    assert [step.index for step in heard.steps] == [1, 2, 3, 4, 5, 6, 7]

    program.goes_on()
    said = program.says()
    heard = program.heard(lambda heard: has(heard, said["logged"]))
    assert (hello(heard).total_steps, hello(heard).accumulation_steps) == (5, 1)
    assert [step.index for step in heard.steps][7:] == [0, 1, 2, 3, 4]

    program.goes_on()
    said = program.says()  # ends before its time
    heard = program.heard(lambda heard: has(heard, said["logged"]))
    assert hello(heard).total_steps == 39
    assert heard.steps[-1].index == said["index"] < 38

    program.goes_on()
    program.says()  # two optimizers, which Lightning counts together
    heard = program.heard(lambda heard: hello(heard).total_steps is None)
    assert hello(heard).accumulation_steps is None
    indices = [step.index for step in heard.steps]
    assert all(after == before + 1 for before, after in zip(indices[-10:], indices[-9:], strict=False))


@pytest.mark.slow("test_a_trainer_tells_its_steps_and_what_it_logs finds the same fault")
def test_accelerate_tells_what_the_script_logs_with_it(start: Callable[[str], Program]) -> None:
    pytest.importorskip("accelerate")
    program = start(ACCELERATE)

    program.says()  # nothing is logged
    heard = program.heard(lambda heard: heard.metrics.get("lr") == 0.125)
    assert "loss" not in heard.metrics
    assert (hello(heard).total_steps, hello(heard).accumulation_steps) == (None, 4)
    assert [step.samples for step in heard.steps[1:]] == [16] * (len(heard.steps) - 1)

    program.goes_on()
    said = program.says()
    heard = program.heard(lambda heard: has(heard, {"loss": said["loss"], "number": 23}))
    assert heard.metrics.keys() == {"lr", "loss", "number"}, (
        "what cannot be read is absent, its neighbours are not"
    )
    assert hello(heard).note is None
