"""torch.compile does the same with llmtop's hooks as without: graphs, breaks, recompilations."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.steps import Zygote

pytestmark = pytest.mark.torch

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


@pytest.fixture(scope="module")
def zygotes() -> Iterator[tuple[Zygote, Zygote]]:
    """Without llmtop, and below `llmtop run`."""
    folder = tempfile.mkdtemp(prefix="lt-")
    both = [Zygote(bare=bare, LLMTOP_DIR=folder, TORCH_LOGS="dynamo") for bare in (True, False)]
    yield both[0], both[1]
    for zygote in both:
        zygote.close()
    shutil.rmtree(folder)


def figures(zygote: Zygote, path: Path, kind: str) -> dict[str, Any]:
    found = zygote.train(path, LOOP % KINDS[kind])
    warnings = [line for line in found["stderr"].splitlines() if "Warning: " in line]
    steps = found["steps"]
    seen = {"steps": len(steps), "phases": {path for step in steps for path in step.phases}}
    return {**json.loads(found["stdout"].splitlines()[0]), "warnings": warnings, **seen}


@pytest.mark.slow("torch.compile itself")
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_code_is_the_same_with_hooks_as_without(
    kind: str, zygotes: tuple[Zygote, Zygote], tmp_path: Path
) -> None:
    without, within = (figures(zygote, tmp_path / "train.py", kind) for zygote in zygotes)
    assert without.pop("steps") == 0
    assert without.pop("phases") == set()
    assert within.pop("steps") == (5 if kind != "whole step" else 4), "the last unseen step ends with the next one"
    assert ("forward" in within.pop("phases")) == (kind in SEEN)
    frames, frames_without = within.pop("frames"), without.pop("frames")
    assert frames["ok"] == frames["total"] <= frames_without["total"], "no frame of ours is compiled"
    assert within == without
