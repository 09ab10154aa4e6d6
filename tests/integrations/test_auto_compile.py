"""torch.compile does the same with llmtop's hooks as without: graphs, breaks, recompilations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import environment
from tests.support.steps import read

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("runtime_dir")]

LOOP = """
import json, torch
from torch import nn
from torch._dynamo.utils import counters

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    def forward(self, x):
        return self.body(self.first(x))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(0)

def compiled(function):
    return torch.compile(function, backend="eager")

def run(step):
    for number in range(6):
        # another shape makes for one compilation more, with the hooks in place
        step(torch.randn(4 if number < 4 else 7, 8))

def plain(loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

%s
print(json.dumps({"stats": counters["stats"], "breaks": sum(counters["graph_break"].values()),
                  "frames": counters["frames"]}))
from tests.support.steps import show
show()
"""

KINDS = {
    "module": "model = compiled(net)\nrun(lambda x: plain(model(x).sum()))",
    "in place": 'net.compile(backend="eager")\nrun(lambda x: plain(net(x).sum()))',
    "child": "net.body = compiled(net.body)\nrun(lambda x: plain(net(x).sum()))",
    "function": "loss = compiled(lambda x: net(x.to(torch.float32)).sum())\nrun(lambda x: plain(loss(x)))",
    "whole step": "run(compiled(lambda x: plain(net(x).sum())))",
}
SEEN = {"module", "in place", "child"}
"""Where the outermost module is called from Python; in a compiled function it is part of the graph."""


# Without TORCH_LOGS torch's own first message, about the profiler in Optimizer.step, loads so much within a
# compiled function that the number of frames says nothing.


def figures(path: Path, *prefix: str) -> dict[str, Any]:
    done = subprocess.run(
        [*prefix, sys.executable, str(path)],
        env=environment(OMP_NUM_THREADS="1", TORCH_LOGS="dynamo"),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "Warning: " in line]
    steps = read(done.stdout)["steps"]
    seen = {"steps": len(steps), "phases": {path for step in steps for path in step.phases}}
    return {**json.loads(done.stdout.splitlines()[0]), "warnings": warnings, **seen}


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_code_is_the_same_with_hooks_as_without(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOP % KINDS[kind])
    without = figures(path)
    within = figures(path, sys.executable, "-m", "llmtop", "run", "--")
    assert without.pop("steps") == 0
    assert without.pop("phases") == set()
    assert within.pop("steps") == (5 if kind != "whole step" else 4), "the last unseen step ends with the next one"
    assert ("forward" in within.pop("phases")) == (kind in SEEN)
    frames, frames_without = within.pop("frames"), without.pop("frames")
    assert frames["ok"] == frames["total"] <= frames_without["total"], "no frame of ours is compiled"
    assert within == without
