#: steps = 8
#: phases = forward backward optimizer
#: tokens = 96
#: hands = yes
#: hands.tokens = 48
#: hands.phases = reference policy
"""DPO: a policy beside a frozen copy of it, chosen and rejected answers in two calls each."""

import copy

import digest
import hands as llmtop
import torch
from torch import nn
from torch.nn.functional import logsigmoid

digest.seed()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.mix = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 40)

    def forward(self, input_ids):
        hidden, _ = self.mix(self.embed(input_ids))
        return self.head(hidden)


def log_probability(model, ids):
    likely = model(input_ids=ids)[:, :-1].log_softmax(-1)
    return likely.gather(2, ids[:, 1:, None]).sum((1, 2))


policy = Policy()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
losses = []
for _ in range(8):
    chosen, rejected = torch.randint(0, 40, (2, 4, 12)).unbind()
    with llmtop.step(tokens=chosen.numel()):
        with llmtop.phase("reference"), torch.no_grad():
            base = log_probability(reference, chosen) - log_probability(reference, rejected)
        with llmtop.phase("policy"):
            margin = log_probability(policy, chosen) - log_probability(policy, rejected)
        loss = -logsigmoid(0.1 * (margin - base)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
digest.add("losses", losses)
digest.model(policy, optimizer)
digest.model(reference, name="reference")
digest.end()
