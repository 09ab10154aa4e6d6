#: steps = 10..11
#: phases = forward backward optimizer
"""A GAN: two networks whose optimizers take turns.

One step more may be counted at the start, before anybody can know that a second optimizer follows.
"""

import digest
import torch
from torch import nn

digest.seed()
generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
judge = nn.BCEWithLogitsLoss()
losses = []
for _ in range(10):
    real, noise = torch.randn(16, 8) + 2, torch.randn(16, 4)
    fake = generator(noise)
    of_critic.zero_grad()
    on_real = judge(critic(real), torch.ones(16, 1))
    on_fake = judge(critic(fake.detach()), torch.zeros(16, 1))
    (on_real + on_fake).backward()
    of_critic.step()
    of_generator.zero_grad()
    fooled = judge(critic(fake), torch.ones(16, 1))
    fooled.backward()
    of_generator.step()
    losses.append((on_real.item(), on_fake.item(), fooled.item()))
digest.add("losses", losses)
digest.model(generator, of_generator, name="generator")
digest.model(critic, of_critic, name="critic")
digest.end()
