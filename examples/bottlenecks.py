"""Plant one bottleneck after another, to see what each looks like in llmtop: python examples/bottlenecks.py

    healthy         the GPT of train_gpt.py, fed in time
    input-starved   the same, with a loader that takes three times as long as the GPU
    launch-bound    a tiny model with an unfused optimizer: thousands of kernels of a microsecond
    spinning        one GPU thread spins for seconds: 100 % util, idle power; how a hung collective looks

Needs a CUDA GPU. `llmtop demo` shows a recording of this script on an H200.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from train_gpt import GPT, SyntheticLanguage, options

import llmtop


def batches(arguments: argparse.Namespace, delay_s: float = 0.0) -> Iterator[Tensor]:
    """Pinned batches from a few prepared ones, each `delay_s` late."""
    language = iter(SyntheticLanguage(arguments.vocabulary, arguments.sequence, seed=1))
    ready = [torch.stack([next(language) for _ in range(arguments.batch)]).pin_memory() for _ in range(8)]
    turn = 0
    while True:
        time.sleep(delay_s)
        yield ready[turn % len(ready)]
        turn += 1


def train(model: GPT, optimizer: torch.optim.Optimizer, data: Iterator[Tensor], seconds: float) -> float:
    """Train on `data` for so long; returns the mean step in seconds."""
    started = time.monotonic()
    for index, batch in enumerate(llmtop.loader(data)):
        with llmtop.step(tokens=batch[:, 1:].numel()):
            with llmtop.phase("h2d"):
                ids = batch.cuda(non_blocking=True)
            with llmtop.phase("forward"), torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        if index % 20 == 0:
            llmtop.log(loss=loss.item())
        if time.monotonic() > started + seconds:
            torch.cuda.synchronize()
            return (time.monotonic() - started) / (index + 1)
    raise AssertionError("unreachable: the data is endless")


def spin(seconds: float) -> None:
    """Keep one GPU thread busy, in pieces of a second, and nothing else."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with llmtop.step(), llmtop.phase("spin"):
            torch.cuda._sleep(int(1.7e9))  # clock cycles: about a second at 1.7 GHz
            torch.cuda.synchronize()


def main() -> None:
    """Run the acts in turn."""
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="length of each act")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bottlenecks.py needs a CUDA GPU, and PyTorch sees none. On a CPU: python examples/train_gpt.py")
    model = GPT(arguments).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    llmtop.attach(params=sum(parameter.numel() for parameter in model.parameters()), dtype="bf16")

    step_s = train(model, optimizer, batches(arguments), arguments.seconds)
    train(model, optimizer, batches(arguments, delay_s=3 * step_s), arguments.seconds)

    size = {"batch": 2, "sequence": 64, "width": 64, "layers": 12, "heads": 2}
    small = argparse.Namespace(**{**vars(arguments), **size})
    tiny = GPT(small).cuda()
    unfused = torch.optim.AdamW(tiny.parameters(), lr=3e-4, foreach=False, fused=False)
    train(tiny, unfused, batches(small), arguments.seconds)

    spin(arguments.seconds)


if __name__ == "__main__":
    main()
