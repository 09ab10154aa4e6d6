#: steps = none
#: compiler = loaded
#: steps[rank0] = 6
#: steps[rank1] = 6
"""FSDP2 over gloo: sharded blocks, mixed precision, clipped norms, a gathered state_dict."""

import os
import sys

import digest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def train(rank):
    torch.manual_seed(7)
    mesh = init_device_mesh("cpu", (2,))
    net = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)], nn.Linear(8, 1))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in net[:3]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    losses, norms = [], []
    for _ in range(6):
        loss = net(torch.randn(8, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.5).full_tensor().item())
        optimizer.step()
        losses.append(loss.item())
    whole = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
    digest.add("losses", losses)
    digest.add("norms", norms)
    digest.add("whole weights", whole)
    digest.add("shards", [p.to_local() for p in net.parameters()])
    digest.add("classes", [type(module).__name__ for module in net.modules()])
    digest.end(f"rank{rank}", children=False)


digest.seed()
torch.set_num_threads(1)
children = []
for rank in range(2):
    if pid := os.fork():
        children.append(pid)
        continue
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
    digest.seed(rank)
    train(rank)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit()
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(codes)
if os.path.exists("meeting"):
    os.unlink("meeting")
digest.end()
