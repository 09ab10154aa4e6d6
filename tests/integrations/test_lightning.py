"""Lightning, with the profiler and without, under both its names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import needs
from tests.support.processes import environment
from tests.support.steps import train

needs("lightning")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("runtime_dir")]

TRAINING = """
import logging, time, warnings, torch
warnings.simplefilter("ignore")
from torch.utils.data import DataLoader, TensorDataset
logging.getLogger("lightning.pytorch").setLevel("ERROR")
logging.getLogger("pytorch_lightning").setLevel("ERROR")

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    def training_step(self, batch, number):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss
    def validation_step(self, batch, number):
        time.sleep(0.8)
        self.net(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class ByHand(Module):
    automatic_optimization = False
    def training_step(self, batch, number):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.net(batch[0]).square().mean())
        optimizer.step()

data = DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=4)
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, val_check_interval=6, limit_val_batches=1,
    num_sanity_val_steps=0, **MORE,
)
trainer.fit(MODULE(), data, data)
"""
SPAWNED = """
import logging, os, torch
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
from llmtop.integrations.lightning import LlmtopProfiler
from llmtop.instrument.record import recorder

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def on_fit_end(self):
        os.write(1, f"rank {self.global_rank} recorded {recorder.get().ring.count}\\n".encode())  # whole lines

if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel("ERROR")
    profiler = LlmtopProfiler()
    for more in ({"devices": 1}, {"devices": 2, "strategy": "ddp_spawn"}):
        pl.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, profiler=profiler, **more,
        ).fit(Module(), DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=4))
"""
PROFILER = "from llmtop.integrations.lightning import LlmtopProfiler\nMORE['profiler'] = LlmtopProfiler()\n"


@pytest.mark.slow("a real framework; test_a_trainer_tells_its_steps_and_what_it_logs has Trainer's steps")
@pytest.mark.parametrize("profiler", [False, True], ids=["no change", "profiler"])
def test_a_fit_publishes_its_steps(profiler: bool, tmp_path: Path) -> None:
    start = "import lightning.pytorch as pl\nMORE = {'accumulate_grad_batches': 2}\n"
    source = start + (PROFILER if profiler else "") + TRAINING.replace("MODULE()", "Module()")
    found = train(tmp_path / "train.py", source)
    assert found["left_out"] == {}
    assert found["total_steps"] == 6
    assert "loss" in found["metrics"]
    assert [step.index for step in found["steps"]] == list(range(1, 6))
    for step in found["steps"][1:]:
        assert [step.count(name) for name in ("backward", "optimizer")] == [2, 1]
        assert step.count("forward") >= 2
        assert "optimizer/forward" not in step.phases
        assert step.samples == 8
    assert sum(step.time("evaluation") >= 0.8 for step in found["steps"]) == 1, "a validation with its sleep"


@pytest.mark.slow("a real framework; test_a_trainer_tells_its_steps_and_what_it_logs has Trainer's steps")
def test_manual_optimisation_under_the_other_name(tmp_path: Path) -> None:
    needs("pytorch_lightning")
    start = "import pytorch_lightning as pl\nMORE = {}\n"
    more = "\nassert isinstance(trainer.profiler, pl.profilers.Profiler)\n"
    found = train(
        tmp_path / "train.py", start + PROFILER + TRAINING.replace("MODULE()", "ByHand()") + more, "--no-auto"
    )
    assert found["left_out"] == {}
    assert len(found["steps"]) == 11
    for step in found["steps"][1:]:
        # A validation before it is a phase of its step.
        trained = {path for path in step.phases if path != "dataload" and not path.startswith("evaluation")}
        assert {path: step.count(path) for path in trained} == {
            "forward": 1,
            "backward": 1,
            "optimizer": 1,
        }


@pytest.mark.slow("a real framework; test_a_trainer_tells_its_steps_and_what_it_logs has Trainer's steps")
def test_a_profiler_that_was_used_goes_to_spawned_ranks_which_publish_their_steps(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The first step of a rank is not recorded: its forward was not seen.
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 recorded 11",
        "rank 0 recorded 5",
        "rank 1 recorded 5",
    ]
