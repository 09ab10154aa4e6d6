#: steps = 4
#: needs = cloudpickle
"""As Ray and submitit do: functions and classes of __main__ sent by value to a worker that knows none of them."""

import pickletools
import subprocess
import sys

import cloudpickle
import digest
import torch
from torch import nn

digest.seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, x):
        return self.body(x)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


def evaluate():
    with torch.no_grad():
        return net(torch.ones(1, 4)).item()


sent = cloudpickle.dumps((evaluate, net, Net))
# The file in which a function was written goes with it; no name may, since the worker could not import it.
names = {value for _, value, _ in pickletools.genops(sent) if isinstance(value, str)}
assert not {name for name in names if name.partition(".")[0] == "llmtop"}
worker = "import sys, pickle; print(repr(pickle.load(sys.stdin.buffer)[0]()))"
answer = subprocess.run([sys.executable, "-c", worker], input=sent, capture_output=True, check=True)
digest.add("answer", answer.stdout)
digest.add("what the worker had to say", answer.stderr)
digest.add("here", evaluate())
digest.model(net, optimizer)
digest.end()
