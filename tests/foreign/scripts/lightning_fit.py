#: steps = 8
#: compiler = loaded
#: needs = lightning
#: slow = loads Lightning
#: hands = hands
"""A LightningModule with validation and a checkpoint. By hand it has llmtop's profiler."""

import logging
import os
import warnings

import digest
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

profiler = None
if os.environ.get("FOREIGN_HANDS"):
    from llmtop.integrations.lightning import LlmtopProfiler

    profiler = LlmtopProfiler()
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
digest.seed()
losses = []


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, index):
        loss = self.body(batch[0]).square().mean()
        losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("held out", self.body(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


net = Net()
data = TensorDataset(torch.randn(32, 4))
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    **({"profiler": profiler} if profiler else {}),
)
trainer.fit(net, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=16))
digest.add("losses", losses)
digest.add("metrics", dict(trainer.callback_metrics))
digest.model(net, *trainer.optimizers)
digest.end()
