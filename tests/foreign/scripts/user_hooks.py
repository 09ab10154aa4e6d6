#: steps = 5
"""Hooks of the user's on everything that torch lets one hook; what each saw, and in which order."""

import digest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

digest.seed()
seen = []
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def note(what):
    return lambda *args, **kwargs: seen.append(what)


for name, module in net.named_modules():
    module.register_forward_pre_hook(note(f"before forward of {name}"))
    module.register_forward_hook(note(f"after forward of {name}"), always_call=True)
    module.register_full_backward_pre_hook(note(f"before backward of {name}"))
    module.register_full_backward_hook(note(f"after backward of {name}"))
    module.register_state_dict_pre_hook(note(f"state of {name}"))
for name, p in net.named_parameters():
    p.register_hook(lambda gradient, name=name: seen.append((name, gradient.sum().item())))
    p.register_post_accumulate_grad_hook(note(f"accumulated {name}"))
handles = [
    nn.modules.module.register_module_forward_pre_hook(note("any module, before")),
    nn.modules.module.register_module_forward_hook(note("any module, after")),
    nn.modules.module.register_module_full_backward_hook(note("any module, backward")),
    register_optimizer_step_pre_hook(note("any optimizer, before")),
    register_optimizer_step_post_hook(note("any optimizer, after")),
]
optimizer.register_step_pre_hook(note("optimizer, before"))
optimizer.register_step_post_hook(note("optimizer, after"))
optimizer.register_state_dict_post_hook(note("state of optimizer"))
for number in range(5):
    x = torch.randn(4, 4, requires_grad=True)
    loss = net(x).square().mean()
    loss.register_hook(note("loss"))
    loss.grad_fn.register_prehook(note("node of the loss"))
    loss.backward(retain_graph=number == 3)
    if number == 3:
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    seen.append(x.grad.sum().item())
for handle in handles:
    handle.remove()
digest.add("seen", seen)
digest.add("how many hooks an optimizer has", len(optimizer._optimizer_step_pre_hooks))
digest.add("how many hooks a module has", [len(m._forward_hooks) + len(m._backward_hooks) for m in net.modules()])
digest.model(net, optimizer)
digest.end()
