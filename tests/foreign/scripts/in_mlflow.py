#: steps = 5
#: needs = mlflow
#: by_hand = mlflow brings seventeen packages, for this program alone
#: slow = one of many, and none of them is fast
"""mlflow logs each step into a folder that is removed at the end."""

import logging
import os
import tempfile

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"

import digest
import mlflow
import torch
from torch import nn

digest.seed()
logging.disable(logging.INFO)
with tempfile.TemporaryDirectory() as folder:
    mlflow.set_tracking_uri(f"file://{folder}")
    mlflow.set_experiment("losses")
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with mlflow.start_run(run_name="one") as run:
        for step in range(5):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            mlflow.log_metric("loss", loss.item(), step=step)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    digest.add("losses", [one.value for one in history])
for name in ("MLFLOW_EXPERIMENT_ID", "MLFLOW_TRACKING_URI"):
    os.environ.pop(name, None)
digest.model(net, optimizer)
digest.end()
