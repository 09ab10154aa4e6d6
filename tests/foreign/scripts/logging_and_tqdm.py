#: steps = 6
#: needs = tqdm
#: slow = one of many, and none of them is fast
"""A root logger with everything on, captured warnings, and a progress bar on stderr."""

import logging
import sys
import warnings

import digest
import torch
from torch import nn
from tqdm import tqdm

digest.seed()
tqdm.monitor_interval = 0
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
logging.captureWarnings(True)
warnings.simplefilter("always")
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for number in tqdm(
    range(6), bar_format="{l_bar}{bar:20}|{n_fmt}", mininterval=0, miniters=1, ascii=True, leave=True
):
    optimizer.zero_grad()
    loss = net(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    logging.info("step %d, loss %.5f", number, loss.item())
warnings.warn("of the user's", stacklevel=1)
digest.add("handlers", [type(handler).__name__ for handler in logging.getLogger().handlers])
digest.add("level", logging.getLogger().level)
digest.model(net, optimizer)
digest.end()
