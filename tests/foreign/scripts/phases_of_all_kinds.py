#: steps = 6
#: hands = yes
#: hands.steps = 6
#: hands.note = steps left by an exception (4)
#: hands.phases = a a/b decorated
"""Steps and phases by hand in all their forms: decorators, exceptions through them, values of all kinds."""

import digest
import hands as llmtop
import torch
from torch import nn

digest.seed()
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
losses = []


@llmtop.phase("decorated")
def forward(x):
    """A docstring."""
    return net(x).square().mean()


@llmtop.step()
def whole(x):
    """Another."""
    with llmtop.phase("a"), llmtop.phase("b"):
        optimizer.zero_grad()
    loss = forward(x)
    loss.backward()
    optimizer.step()
    llmtop.log(loss=loss, text="words", nothing=None, tensor=torch.ones(3), number=1)
    return loss.item()


for _ in range(6):
    losses.append(whole(torch.randn(8, 4)))  # noqa: PERF401
for error in (ValueError, KeyboardInterrupt, StopIteration, GeneratorExit):
    try:
        with llmtop.step(), llmtop.phase("a"):
            raise error("of the user's")
    except error as caught:  # noqa: PERF203
        print(type(caught).__name__, caught, caught.__context__)
print(forward.__doc__, whole.__doc__, forward.__name__, whole.__name__)
digest.add("losses", losses)
digest.model(net, optimizer)
digest.end()
