#: steps = 4
#: slow = one of many, and none of them is fast
"""An archive that Python runs (zipapp): the modules of the training have no files."""

import os
import sys
import zipapp
from pathlib import Path

TRAIN = """
import digest, torch
from torch import nn
digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
digest.add("in", __file__.endswith("train.pyz/__main__.py"))
digest.model(net, optimizer)
digest.end()
"""

here = Path(__file__).parent
package = here / "package"
package.mkdir()
(package / "__main__.py").write_text(TRAIN)
(package / "digest.py").write_text((here / "digest.py").read_text())
for made in package.iterdir():
    os.utime(made, (1.7e9, 1.7e9))  # the archive has it
zipapp.create_archive(package, here / "train.pyz", filter=lambda path: path.suffix == ".py")
for made in sorted(package.rglob("*"), reverse=True):
    made.unlink()
package.rmdir()
os.execv(sys.executable, [sys.executable, "train.pyz"])
