"""Train a small GPT in plain PyTorch, attached to llmtop with five lines (each marked; the phases are a bonus).

    python examples/train_gpt.py                              # CUDA when it is there, else the CPU (some minutes)
    torchrun --nproc-per-node 2 examples/train_gpt.py         # DDP: NCCL on GPUs, gloo on the CPU

The data is a synthetic language (each token depends on the one before), so nothing is downloaded and the loss
falls all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import llmtop  # llmtop


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    """A decoder-only transformer with learned positions and tied embeddings."""

    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.sequence, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, sequence) token ids -> (batch, sequence, vocabulary) logits."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class SyntheticLanguage(IterableDataset[Tensor]):
    """Endless sequences in which a token is a function of the one before, one time in four at random."""

    def __init__(self, vocabulary: int, sequence: int, seed: int) -> None:
        self.vocabulary, self.sequence, self.seed = vocabulary, sequence, seed

    def __iter__(self) -> Iterator[Tensor]:
        worker = torch.utils.data.get_worker_info()
        random = torch.Generator().manual_seed(self.seed * 1000 + (worker.id if worker else 0))
        while True:
            noise = torch.randint(self.vocabulary, (self.sequence + 1,), generator=random)
            surprise = torch.rand(self.sequence + 1, generator=random) < 0.25
            # Between two surprises the language counts up in strides of 7; one cumulative maximum finds the last.
            index = torch.arange(self.sequence + 1)
            last = torch.where(surprise, index, 0).cummax(0).values
            yield (noise[last] + 7 * (index - last)) % self.vocabulary


def build(arguments: argparse.Namespace, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model on its device and a fused AdamW where there is one."""
    with device:  # weights are made there: on the host that takes seconds
        model = GPT(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    return model, optimizer


def train(arguments: argparse.Namespace) -> None:
    """Train until `--steps` are done."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available() and not arguments.cpu
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model, optimizer = build(arguments, device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if world > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if arguments.compile:
        model = torch.compile(model)  # type: ignore[assignment]
    data = DataLoader(
        SyntheticLanguage(arguments.vocabulary, arguments.sequence, seed=rank),
        batch_size=arguments.batch,
        num_workers=arguments.workers,
        pin_memory=cuda,
    )
    autocast = torch.autocast("cuda", torch.bfloat16) if cuda else contextlib.nullcontext()
    llmtop.attach(total_steps=arguments.steps, params=parameters, dtype="bf16" if cuda else None)  # llmtop
    for index, batch in enumerate(llmtop.loader(data)):  # llmtop
        if index == arguments.steps:
            break
        with llmtop.step(tokens=batch[:, 1:].numel()):  # llmtop
            with llmtop.phase("h2d"):
                ids = batch.to(device, non_blocking=True)
            with llmtop.phase("forward"), autocast:
                logits = model(ids[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            with llmtop.phase("backward"):
                loss.backward()
            with llmtop.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        if index % 20 == 19:
            llmtop.log(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])  # llmtop
            if rank == 0 and not arguments.quiet:
                print(f"step {index + 1}: loss {loss.item():.3f}", flush=True)
    if world > 1:
        dist.destroy_process_group()


def options(documentation: str | None = __doc__) -> argparse.ArgumentParser:
    """The command line; the defaults suit a GPU where there is one, a laptop elsewhere."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=(documentation or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=2000 if cuda else 6000, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=8 if cuda else 4, help="sequences a step and rank")
    parser.add_argument("--sequence", type=int, default=2048 if cuda else 64, help="tokens a sequence")
    parser.add_argument("--width", type=int, default=1024 if cuda else 64)
    parser.add_argument("--layers", type=int, default=12 if cuda else 2)
    parser.add_argument("--heads", type=int, default=16 if cuda else 4)
    parser.add_argument("--vocabulary", type=int, default=32_000 if cuda else 512)
    parser.add_argument("--workers", type=int, default=4 if cuda else 0, help="DataLoader worker processes")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    return parser


if __name__ == "__main__":
    train(options().parse_args())
