#: steps = 6..11
#: slow = one of many, and none of them is fast
"""A WGAN with gradient penalty: five steps of the critic for one of the generator.

The first five may be counted each, before anybody can know that there is a generator.
"""

import digest
import torch
from torch import nn

digest.seed()
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)


def penalty(real, fake):
    between = torch.lerp(real, fake, torch.rand(16, 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slope.norm(dim=1) - 1) ** 2).mean()


losses = []
for _ in range(6):
    for _ in range(5):
        real, fake = torch.randn(16, 8), generator(torch.randn(16, 4)).detach()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        losses.append(loss.item())
    loss = -critic(generator(torch.randn(16, 4))).mean()
    of_generator.zero_grad()
    loss.backward()
    of_generator.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(generator, of_generator, name="generator")
digest.model(critic, of_critic, name="critic")
digest.end()
