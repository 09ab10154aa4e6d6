"""Checkpoints that real functions write: step, path, duration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectors.trainings.disk_watch import read_use
from tests.support.processes import environment
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

LOOP = """
import io, json, torch, time
from torch import nn
import torch.distributed.checkpoint as dcp
import safetensors.torch
net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step():
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
for _ in range(8):
    step()
FOLDER = {folder!r}
{save}
"""
REPORT = """
import json, time
from llmtop.instrument.record import recorder
deadline = time.monotonic() + 200
while len(recorder.get().saved.read()) < {count} and time.monotonic() < deadline:
    time.sleep(0.02)
print("saved:", json.dumps([one._asdict() for one in recorder.get().saved.read()]))
"""


def _saved(zygote: Zygote, tmp_path: Path, save: str, count: int = 1) -> list[dict[str, Any]]:
    source = LOOP.format(folder=str(tmp_path), save=save) + REPORT.format(count=count)
    output = zygote.train(tmp_path / "train.py", source)["stdout"]
    found: list[dict[str, Any]] = json.loads(output.split("saved: ")[1].splitlines()[0])
    return found


@pytest.mark.parametrize(
    ("save", "name", "function"),
    [
        ("torch.save(net.state_dict(), FOLDER + '/m.pt')", "m.pt", "torch.save"),
        pytest.param(
            "torch.save(net.state_dict(), open(FOLDER + '/o.pt', 'wb'))",
            "o.pt",
            "torch.save",
            marks=pytest.mark.slow("an open file; the one before has a path"),
        ),
        pytest.param(
            "safetensors.torch.save_file(net.state_dict(), FOLDER + '/m.safetensors')",
            "m.safetensors",
            "save_file",
            marks=pytest.mark.slow("a library is wrapped as the one that follows"),
        ),
        ("dcp.save(net.state_dict(), checkpoint_id=FOLDER + '/dcp')", "dcp", "save"),
    ],
)
def test_a_checkpoint_has_its_step_and_its_path(
    save: str, name: str, function: str, zygote: Zygote, tmp_path: Path
) -> None:
    (one,) = _saved(zygote, tmp_path, save)
    assert (one["step"], one["path"], one["function"]) == (7, str(tmp_path / name), function)
    assert 0 < one["blocked_ns"] <= one["taken_ns"]


FIRST_IMPORTS = {
    "save": """
import torch.distributed.checkpoint as dcp
dcp.save(net.state_dict(), checkpoint_id=FOLDER + "/c")
""",
    "async_save": """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from torch.distributed.checkpoint import async_save
async_save(net.state_dict(), checkpoint_id=FOLDER + "/c").result()
""",
    "save_file": """
from safetensors.torch import save_file
save_file(net.state_dict(), FOLDER + "/c")
""",
}


@pytest.mark.slow("one import stands for all; each trains", kept=("async_save",))
@pytest.mark.parametrize("function", FIRST_IMPORTS)
def test_a_library_that_is_imported_to_save_has_its_first_checkpoint(
    function: str, zygote: Zygote, tmp_path: Path
) -> None:
    later = ("import torch.distributed.checkpoint as dcp\n", "import safetensors.torch\n")
    loop = LOOP
    for line in later:
        loop = loop.replace(line, "")
    source = loop.format(folder=str(tmp_path), save=FIRST_IMPORTS[function]) + REPORT.format(count=1)
    output = zygote.train(tmp_path / "train.py", source)["stdout"]
    (one,) = json.loads(output.split("saved: ")[1].splitlines()[0])
    assert (one["step"], one["path"], one["function"]) == (7, str(tmp_path / "c"), function)
    assert 0 < one["blocked_ns"] <= one["taken_ns"]


def test_what_is_saved_into_memory_or_fails_is_no_checkpoint(zygote: Zygote, tmp_path: Path) -> None:
    save = """
torch.save(net.state_dict(), io.BytesIO())
try:
    torch.save(net.state_dict(), FOLDER + "/no/such/folder/m.pt")
except Exception:
    pass
torch.save(net.state_dict(), FOLDER + "/m.pt")
"""
    found = _saved(zygote, tmp_path, save)
    assert [Path(one["path"]).name for one in found] == ["m.pt"]


ASYNC = """
import threading
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter
class SlowDisk(FileSystemWriter):
    def write_data(self, plan, planner):
        goes_on.wait(60)  # a busy machine may write before it returns to the training
        time.sleep(SECONDS)
        return super().write_data(plan, planner)
SECONDS, goes_on = {seconds}, threading.Event()
dist.init_process_group("gloo", init_method="file://" + FOLDER + "/store", rank=0, world_size=1)
future = dcp.async_save(net.state_dict(), storage_writer=SlowDisk(FOLDER + "/dcp"))
goes_on.set()
for _ in range(3):
    step()
result = getattr(future, "upload_completion", future).result()
"""


@pytest.mark.slow("a slow disk is the harder case", kept=("0.5",))
@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_an_asynchronous_checkpoint_tells_waiting_from_writing(
    seconds: float, zygote: Zygote, tmp_path: Path
) -> None:
    (one,) = _saved(zygote, tmp_path, ASYNC.replace("{seconds}", str(seconds)))
    assert (one["step"], one["path"], one["function"]) == (7, str(tmp_path / "dcp"), "async_save")
    assert one["taken_ns"] >= seconds * 1e9, "the disk alone takes that"
    assert 0 < one["blocked_ns"] <= one["taken_ns"] - seconds * 5e8, "the training went on meanwhile"


def test_a_checkpoint_of_another_thread_does_not_make_the_training_wait(zygote: Zygote, tmp_path: Path) -> None:
    save = """
import threading
other = threading.Thread(target=lambda: torch.save(net.state_dict(), FOLDER + "/m.pt"))
other.start()
other.join()
"""
    (one,) = _saved(zygote, tmp_path, save)
    assert one["path"] == str(tmp_path / "m.pt")
    assert one["blocked_ns"] == 0 < one["taken_ns"]


FRAMEWORKS = {
    "transformers": (
        """
import torch
from transformers import Trainer, TrainingArguments
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.line(x)[:, 0] - labels).square().mean()}
data = [{"x": torch.randn(8), "labels": torch.tensor(0.0)} for _ in range(48)]
Trainer(Net(), TrainingArguments(FOLDER, per_device_train_batch_size=4, num_train_epochs=1, save_steps=5,
    report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1), train_dataset=data).train()
""",
        "_save_checkpoint",
        [4, 9, 11],
        "checkpoint-12",
    ),
    "lightning": (
        """
import lightning as L, torch
from lightning.pytorch.callbacks import ModelCheckpoint
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        return self.line(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
L.Trainer(max_steps=12, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[ModelCheckpoint(FOLDER, every_n_train_steps=5, save_top_k=-1)],
).fit(Net(), torch.utils.data.DataLoader(torch.randn(48, 8), batch_size=4))
""",
        "save_checkpoint",
        [4, 9],
        "epoch=0-step=10.ckpt",
    ),
    "accelerate": (
        """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(8, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
for number in range(12):
    accelerator.backward(net(torch.randn(4, 8)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if number in (4, 9):
        accelerator.save_state(FOLDER + f"/state-{number}")
""",
        "save_state",
        [4, 9],
        "state-9",
    ),
}


@pytest.mark.slow("imports a framework, 10 s each; the wrapper is the one of the tests above")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_s_checkpoint_is_one_with_its_folder(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    source, function, steps, name = FRAMEWORKS[framework]
    script = tmp_path / "train.py"
    script.write_text(f"FOLDER = {str(tmp_path / 'out')!r}\n{source}\n{REPORT.format(count=len(steps))}")
    done = subprocess.run(
        [sys.executable, "-m", "llmtop", "run", "--summary", "off", sys.executable, script],
        env=environment(LLMTOP_DIR=str(tmp_path / "sockets"), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    found = json.loads(done.stdout.split("saved: ")[1].splitlines()[0])
    assert [(one["step"], one["function"]) for one in found] == [(at, function) for at in steps]
    last = found[-1]
    assert Path(last["path"]) == tmp_path / "out" / name
    assert 0 < last["blocked_ns"] <= last["taken_ns"]
    use = read_use(last["path"])
    files = [one for one in [Path(last["path"]), *Path(last["path"]).rglob("*")] if one.is_file()]
    assert use.size_bytes == sum(one.stat().st_size for one in files)
    assert use.size_bytes
    assert use.free_bytes
