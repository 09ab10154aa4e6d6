#: steps = 4
"""What a training starts beside itself: other Pythons, a shell, git's pagers; with and without its environment."""

import os
import subprocess
import sys

import digest
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
look = "import sys; print(sys.argv, [m for m in sys.modules if 'llmtop' in m.split('.')], sys.path[:1], sys.flags)"
for options in ([], ["-E"], ["-S"], ["-I"], ["-O"], ["-P"]):
    done = subprocess.run([sys.executable, *options, "-c", look, "word"], capture_output=True, check=False)
    digest.add(f"python {options}", (done.returncode, done.stdout, done.stderr))
done = subprocess.run([sys.executable, "-c", "raise SystemExit(9)"], env={}, check=False)
digest.add("without an environment", done.returncode)
digest.add("shell", subprocess.run("echo $0; exec 2>&1; ls /proc/self/fd", shell=True, capture_output=True).stdout)
with os.popen("echo through a shell") as pipe:  # whether a child still lives where nobody waits is chance
    digest.add("popen", pipe.read())
digest.model(net, optimizer)
digest.end()
