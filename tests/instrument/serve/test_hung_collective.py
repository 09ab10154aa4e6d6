"""Two ranks over gloo, of which one stops calling collectives: it is named within seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_ranks import running_ranks
from tests.support.processes import environment
from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

TRAINING = """
import os, sys, time, torch
import torch.distributed as dist
from torch import nn

dist.init_process_group(**GROUP)
mine = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
net = nn.parallel.DistributedDataParallel(nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for index in range(10**9):
    if index >= 50 and dist.get_rank() == 1 and os.path.exists(sys.argv[1]):
        time.sleep(1000)
    dist.all_reduce(torch.ones(1), group=mine)
    net(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def alert_of(lines: Any, until: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The alert, and the snapshot that has it."""
    for line in lines:
        snapshot = json.loads(line)
        for alert in snapshot["alerts"]:
            if alert["id"] == "hung_collective":
                return alert, snapshot
        assert time.monotonic() < until, snapshot["ranks"]
    raise AssertionError("the monitor ended")


@pytest.mark.slow("two ranks and a monitor; tests/rules/test_collective_hang.py has the rule alone")
def test_the_rank_that_hangs_is_named_before_it_counts_as_stalled(
    zygote: Zygote, runtime_dir: Path, tmp_path: Path
) -> None:
    hang = tmp_path / "hang"
    with running_ranks(zygote, tmp_path / "train.py", TRAINING, str(hang), LLMTOP_DIR=str(runtime_dir)):
        monitor = subprocess.Popen(
            [sys.executable, "-m", "llmtop", "--json", "--interval", "0.5"],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert monitor.stdout is not None
            for line in monitor.stdout:  # its first contact may take a while, in which a rank would become stalled
                if sum((rank["step"] or 0) >= 50 for rank in json.loads(line)["ranks"]) == 2:
                    break
            hang.touch()
            alert, snapshot = alert_of(monitor.stdout, time.monotonic() + 240)
        finally:
            monitor.kill()
            monitor.wait(100)
    late = next(rank for rank in snapshot["ranks"] if rank["rank"] == 1)
    assert alert["pid"] == late["pid"]
    assert alert["evidence"]["rank"] == 1
    assert alert["evidence"]["process_group"] == "0 default_pg"
    assert "all_reduce" in alert["evidence"]["operation"]
    assert alert["evidence"]["behind_by"] == 1
    assert late["state"] == "running", "named before a minute is over"
