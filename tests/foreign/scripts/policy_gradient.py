#: steps = 6
#: slow = one of many, and none of them is fast
"""Reinforcement learning: acting without gradients, sixteen forwards of one row, then one backward pass."""

import digest
import torch
from torch import nn
from torch.distributions import Categorical

digest.seed()
policy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
returns = []
for _ in range(6):
    state, chosen, rewards = torch.zeros(3), [], []
    with torch.no_grad():
        policy(state)
    for _ in range(16):
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        chosen.append(choice.log_prob(action))
        state = 0.9 * state + torch.randn(3) * 0.1 + (action - 0.5)
        rewards.append(-state.norm().item())
    loss = -(torch.stack(chosen) * torch.tensor(rewards)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    returns.append(sum(rewards))
digest.add("returns", returns)
digest.model(policy, optimizer)
digest.end()
