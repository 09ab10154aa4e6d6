"""What ncu looks at: a step of a GPT, and two kernels with a planted fault each.

    python -m tests.gpu.ncu_workloads names                       # the GPT's kernels by device time, as JSON
    ncu … python -m tests.gpu.ncu_workloads gpt [STEPS]|uncoalesced|conflicts

`uncoalesced` reads floats 128 bytes apart; `conflicts` reads a tile of shared memory by columns, so that the 32
lanes of a warp meet in one bank.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

UNCOALESCED = r"""
extern "C" __global__ void planted_uncoalesced(const float* in, float* out, long n, int stride) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[(i * stride) % n] + 1.0f;
}
"""
CONFLICTS = r"""
extern "C" __global__ void planted_conflicts(float* out, int rounds) {
    __shared__ float tile[32][32];
    int x = threadIdx.x, y = threadIdx.y;
    tile[y][x] = x + y;
    __syncthreads();
    float sum = 0.0f;
    for (int r = 0; r < rounds; ++r) {
        sum += tile[x][(y + r) & 31];
        tile[x][(y + r) & 31] = sum;
    }
    out[(blockIdx.x * 32 + y) * 32 + x] = sum;
}
"""


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, sequence, width) -> the same."""
        q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def steps(count: int) -> Any:
    """So many training steps; returns a function that does one more."""
    model = nn.Sequential(*(Block(1024) for _ in range(4)), nn.LayerNorm(1024), nn.Linear(1024, 32_768)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x, y = torch.randn(8, 1024, 1024, device="cuda"), torch.randint(32_768, (8 * 1024,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return step


def names() -> list[str]:
    """The GPT's kernels, the one that takes longest first."""
    step = steps(5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    seconds: Counter[str] = Counter()
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem"):
            seconds[event.name] += event.device_time
    return [name for name, _ in seconds.most_common(12)]


def planted(name: str) -> None:
    """Launch a planted kernel three times."""
    import cupy  # type: ignore[import-not-found]

    if name == "uncoalesced":
        kernel, n = cupy.RawKernel(UNCOALESCED, "planted_uncoalesced"), 1 << 26
        into, out = cupy.ones(n, dtype=cupy.float32), cupy.empty(n, dtype=cupy.float32)
        for _ in range(3):
            kernel((n // 256,), (256,), (into, out, cupy.int64(n), cupy.int32(33)))
    else:
        kernel = cupy.RawKernel(CONFLICTS, "planted_conflicts")
        out = cupy.empty(132 * 8 * 1024, dtype=cupy.float32)
        for _ in range(3):
            kernel((132 * 8,), (32, 32), (out, cupy.int32(2000)))
    cupy.cuda.Device().synchronize()


def main(what: str, count: int = 4) -> None:
    """Run one of them; of the GPT so many steps."""
    if what == "names":
        print(json.dumps(names()))
    elif what == "gpt":
        steps(count)
    else:
        planted(what)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
