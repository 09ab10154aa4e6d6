"""A step is from start to start: against a stamp that each script takes at the same line of each iteration.

The ratio of two means over the same steps is compared, of one process by one clock, so that a busy machine changes
both alike.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtop.model.snapshot import Phase, Step
from llmtop.protocol import wire
from llmtop.protocol.client import Connection
from llmtop.step_history.whole_steps import WholeStep, WholeStepBuilder, covered_seconds
from tests.support.processes import environment, wait_for
from tests.support.trainings import Heard, sockets

pytestmark = pytest.mark.torch

WITHIN = 0.02
ENDS = 12
"""Of so many steps at either end each is once the first or the last: where one lies is the noise of one step."""
BEGIN = """
import json, os, sys, time, torch
import tests.support.light_optimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
stamps = []
def stamp():
    stamps.append(time.perf_counter())
def end():
    with open(f"{sys.argv[1]}/{os.environ.get('RANK', '0')}.new", "w") as file:
        json.dump(stamps, file)
    os.rename(file.name, file.name[:-3] + "json")
    sys.stdin.readline()
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
data = TensorDataset(torch.randn(480, 64))
loader = DataLoader(data, batch_size=4)
def learn(batch):
    net(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def host(seconds=0.004):
    time.sleep(seconds)
"""
FRAMEWORK = """
import logging, tempfile, warnings
warnings.simplefilter("ignore")
folder = tempfile.mkdtemp()
"""
SCRIPTS = {
    "plain loop": """
for (batch,) in loader:
    stamp()
    learn(batch)
    host()
""",
    "gradient accumulation": """
for number, (batch,) in enumerate(DataLoader(data, batch_size=1)):
    if number % 4 == 0:
        stamp()
    net(batch).square().mean().backward()
    host(0.001)
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
        host()
""",
    "Trainer": FRAMEWORK
    + """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
class Stamps(TrainerCallback):
    def on_step_begin(self, *args, **more):
        stamp()
    def on_step_end(self, *args, **more):
        host()
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
ids = torch.randint(0, 64, (16,))
rows = [{"input_ids": ids, "labels": ids} for _ in range(480)]
arguments = TrainingArguments(
    output_dir=folder, per_device_train_batch_size=4, num_train_epochs=1, eval_strategy="steps", eval_steps=25,
    save_strategy="steps", save_steps=40, logging_steps=5, report_to=[], use_cpu=True, disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:16], callbacks=[Stamps()]).train()
""",
    "Lightning": FRAMEWORK
    + """
import lightning.pytorch as pl
logging.getLogger("lightning.pytorch").setLevel("ERROR")
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, number):
        return self.net(batch[0]).square().mean()
    def validation_step(self, batch, number):
        host(0.01)
        self.net(batch[0])
    def on_train_batch_start(self, *args):
        stamp()
    def on_train_batch_end(self, *args):
        host()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)
pl.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, default_root_dir=folder,
    enable_model_summary=False, val_check_interval=30, limit_val_batches=3, num_sanity_val_steps=0,
    callbacks=[pl.callbacks.ModelCheckpoint(every_n_train_steps=25, save_top_k=-1)],
).fit(Module(), loader, loader)
""",
    "Accelerate": FRAMEWORK
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(data, batch_size=2))
for number, (batch,) in enumerate(loader):
    if number % 2 == 0:
        stamp()
    with accelerator.accumulate(net):
        accelerator.backward(net(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    host(0.002)
""",
    "DDP": """
import torch.distributed as dist
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
for (batch,) in loader:
    stamp()
    learn(batch)
    host(0.004 * (1 + dist.get_rank()))
""",
    "a closure": """
for (batch,) in loader:
    stamp()
    def closure():
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
    host()
""",
    "LBFGS": """
optimizer = torch.optim.LBFGS(net.parameters(), lr=1e-3, max_iter=4)
for (batch,) in loader:
    stamp()
    def closure():
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
    host()
""",
    "GAN": """
generator = nn.Linear(8, 64)
of_generator = torch.optim.SGD(generator.parameters(), lr=1e-4)
for (batch,) in loader:
    stamp()
    with torch.no_grad():
        made = generator(torch.randn(4, 8))
    (net(batch) - net(made)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    host(0.002)
    net(generator(torch.randn(4, 8))).mean().backward()
    of_generator.step()
    of_generator.zero_grad()
    host()
""",
    "evaluation every N": """
held_out = DataLoader(TensorDataset(torch.randn(32, 64)), batch_size=8)
for number, (batch,) in enumerate(loader):
    stamp()
    learn(batch)
    host()
    if number % 20 == 15:
        net.eval()
        with torch.no_grad():
            for (batch,) in held_out:
                net(batch)
                host(0.01)
        net.train()
""",
    "checkpoint every N": """
import io
class Slow(io.BytesIO):
    def write(self, data):
        host(0.005)
        return super().write(data)
for number, (batch,) in enumerate(loader):
    stamp()
    learn(batch)
    host()
    if number % 20 == 15:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, Slow())
""",
    "compiled": """
net = torch.compile(net, backend="aot_eager")
for (batch,) in loader:
    stamp()
    learn(batch)
    host()
""",
}
SOMETIMES = {"evaluation", "checkpoint"}
HAS = {
    "Trainer": SOMETIMES,
    "Lightning": SOMETIMES,
    "evaluation every N": {"evaluation"},
    "checkpoint every N": {"checkpoint"},
}


def _heard(connection: Connection) -> Heard:
    """All steps of a training that has ended them."""
    heard = Heard(connection)
    heard.until(lambda: heard.steps)
    while fresh := connection.receive(1.0):
        heard.messages += fresh
    return heard


def _whole(heard: Heard) -> Iterator[WholeStep]:
    following = WholeStepBuilder()
    for done in heard.steps:
        phases = tuple(Phase(name=phase.name, host_seconds=phase.host_ns / 1e9) for phase in done.phases)
        step = Step(
            index=done.index,
            started_at=done.started_unix_ns / 1e9,
            seconds=done.host_ns / 1e9,
            interval_seconds=None if done.interval_ns is None else done.interval_ns / 1e9,
            phases=phases,
        )
        whole = following.add(step)
        if whole is not None:
            yield whole


def _begins_with_a_step(whole: WholeStep) -> bool:
    """Whether it begins where its iteration does, and not with what came before that."""
    return not SOMETIMES & {phase.name for phase in whole.step.phases}


@pytest.mark.slow(
    "a training of its own for each script; test_an_evaluation_is_a_phase_of_the_step_that_follows has evaluations"
)
@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_and_their_parts_are_as_long_as_the_iterations(name: str, runtime_dir: Path, tmp_path: Path) -> None:
    for library in ("transformers", "lightning", "accelerate"):
        if library in SCRIPTS[name]:
            pytest.importorskip(library)
    script = tmp_path / "train.py"
    script.write_text(BEGIN + SCRIPTS[name] + "\nend()\n")
    ranks = 2 if name == "DDP" else 1
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if ranks > 1 else []
    below = [sys.executable, "-m", "llmtop", "run", "--", sys.executable]
    training = subprocess.Popen(
        [*below, *start, str(script), str(tmp_path)],
        env=environment(OMP_NUM_THREADS="1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        files = [tmp_path / f"{rank}.json" for rank in range(ranks)]
        wait_for(lambda: training.poll() is not None or all(file.exists() for file in files), 100)
        assert training.poll() is None, training.communicate(timeout=240)[1]
        for file in sockets(runtime_dir):
            with Connection.open(file.path, history=2048, timeout_s=20) as connection:
                stamps = json.loads((tmp_path / f"{connection.hello.rank or 0}.json").read_text())
                _compare(name, list(_whole(_heard(connection))), stamps)
        assert len(sockets(runtime_dir)) == ranks
    finally:
        training.kill()
        training.communicate(timeout=240)


@pytest.mark.slow(
    "a real kernel of Jupyter; test_who_waits_for_a_person_is_paused_and_no_step_goes_across has prompts"
)
def test_those_of_a_notebook_s_cells_too_and_no_step_spans_the_wait_between_them(
    runtime_dir: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import KernelManager

    kernel = KernelManager()
    below = [sys.executable, "-m", "llmtop", "run", "-q", "--"]
    kernel.kernel_spec.argv = [*below, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.start_kernel(env={**os.environ, **environment(OMP_NUM_THREADS="1")}, cwd=str(tmp_path))
    client = kernel.client()
    client.start_channels()

    def cell(source: str) -> None:
        reply = client.execute_interactive(source, timeout=240, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]

    try:
        client.wait_for_ready(timeout=240)
        cell(BEGIN)
        cell(SCRIPTS["plain loop"])
        (file,) = sockets(runtime_dir)
        with Connection.open(file.path, history=2048, timeout_s=20) as connection:
            first = _heard(connection)
            before = len(first.steps)
            first.until(lambda: any(isinstance(one, wire.StalledAt) and one.where for one in first.messages))
            cell("pause = time.perf_counter() - stamps[-1]")
            cell(SCRIPTS["plain loop"])
            cell(f"sys.argv[1:] = [{str(tmp_path)!r}]; sys.stdin = open(os.devnull); end()")
            first.until(lambda: len(first.steps) >= 2 * before)
            while fresh := connection.receive(1.0):
                first.messages += fresh
            steps = list(_whole(first))
        stamps = json.loads((tmp_path / "0.json").read_text())
        half = len(stamps) // 2
        spans = [whole for whole in steps if whole.step.index == half - 1]
        assert spans == [], "the wait between two cells is no step"
        _compare("plain loop", [whole for whole in steps if whole.step.index < half - 1], stamps[:half])
        _compare("plain loop", [whole for whole in steps if whole.step.index >= half], stamps, first=half)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def _compare(name: str, steps: list[WholeStep], stamps: list[float], first: int = 0) -> None:
    """Against the stamps of all steps of the training; `steps` are those from number `first` on."""
    known = {whole.step.index: whole for whole in steps}
    assert list(known) == list(range(min(known), max(known) + 1)), "one after the other"
    assert len(steps) >= len(stamps) - first - 3, (
        "all but the first, which nobody saw, and the last, which is not over"
    )
    usual = [index for index, whole in known.items() if _begins_with_a_step(whole)]
    ratios = []
    for begin, last in zip(usual[:ENDS], usual[-ENDS:], strict=True):
        together = [known[index] for index in range(begin, last)]
        by_hand = (stamps[last] - stamps[begin]) / (last - begin)
        mean = sum(whole.seconds for whole in together) / len(together)
        parts = sum(covered_seconds(whole.step.phases) + whole.outside for whole in together) / len(together)
        assert abs(parts / mean - 1) < WITHIN
        ratios.append(mean / by_hand)
    assert abs(statistics.median(ratios) - 1) < WITHIN, ratios
    found = {phase.name for whole in steps for phase in whole.step.phases}
    assert found & SOMETIMES == HAS.get(name, set())
    assert statistics.median(whole.outside for whole in steps) > 0.001, "what the host did in no phase"
