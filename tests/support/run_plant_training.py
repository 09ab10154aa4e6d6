"""A training that stamps what it does by clocks of its own (run_plants.py copies it into a folder and starts it).

python run_plant_training.py CONFIGURATION.json

Each rank appends lines to `stamps/ATTEMPT.RANK.PID.jsonl` in the working directory: a head with the start of its
process by the kernel, then one line for each change of what the rank does. A line is written as it happens: a kill
loses none. GPU work is a wait of known length; model, optimizer, DDP, loader and torch.save are PyTorch's.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = int(os.environ.get("PLANT_ATTEMPT", os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))


def born() -> float:
    """Return when this process was started, by time.monotonic: 10 ms exact."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return since_boot - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()


class Stamps:
    """The states of this rank, one line each."""

    def __init__(self) -> None:
        folder = Path("stamps")
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"{ATTEMPT}.{RANK}.{os.getpid()}.jsonl").open("a", buffering=1)
        self._write(
            rank=RANK, attempt=ATTEMPT, pid=os.getpid(), born=born(), unix=time.time(), now=time.monotonic()
        )
        atexit.register(self.state, "end")

    def _write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")

    def state(self, name: str, since: float | None = None) -> None:
        """From `since` (now) on this rank is in a state."""
        self._write(state=name, at=time.monotonic() if since is None else since)

    def event(self, name: str, step: int) -> None:
        """Record an instant: "step" and "saved" with the step they end, "crash"."""
        self._write(event=name, at=time.monotonic(), step=step)


class PretendedDevice(torch.autograd.Function):
    """GPU work: a wait in forward and in backward."""

    backward_done = 0.0

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.seconds = backward_s
        time.sleep(forward_s)
        return values * 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        PretendedDevice.backward_done = time.monotonic()
        return gradients[0], None, None


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random samples, each `seconds` of loading."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._seconds:
            time.sleep(self._seconds)
        values = torch.full((64,), (index % 17) / 17)
        return values, values[:1]


class SlowDisk(io.FileIO):
    """A file whose writes take `seconds` in all."""

    def __init__(self, path: Path, seconds: float, size: int) -> None:
        super().__init__(path, "wb")
        self._a_byte = seconds / size

    def write(self, data: Any) -> int:
        time.sleep(self._a_byte * memoryview(data).nbytes)
        return super().write(data)


class Training:
    """Model, optimizer and loaders of a configuration."""

    def __init__(self, options: dict[str, Any], stamps: Stamps) -> None:
        self.options, self.stamps = options, stamps
        torch.manual_seed(0)
        torch.set_num_threads(1)
        plain = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
        self.plain = plain
        if WORLD > 1:
            dist.init_process_group("gloo")
        self.model: nn.Module = nn.parallel.DistributedDataParallel(plain) if WORLD > 1 else plain
        if options.get("compile"):
            self.model = torch.compile(self.model, backend="aot_eager")  # type: ignore[assignment]
        self.optimizer = torch.optim.AdamW(plain.parameters(), 1e-3)
        self.start = 0
        path = Path("checkpoint.pt")
        if path.exists():
            saved = torch.load(path)
            plain.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.start = saved["step"]
        self.slow = options.get("slow_rank", {}).get(str(RANK), 0.0)

    def loader(self, batches: int, seconds: float = 0.0) -> DataLoader[Any]:
        """Return a loader of `batches` batches; a batch takes `seconds` to load."""
        batch = 8
        return DataLoader(
            Samples(batches * batch, seconds / batch), batch, num_workers=self.options.get("workers", 0)
        )

    def loss(self, batch: Any) -> torch.Tensor:
        values, target = batch
        seconds = self.options["forward"] + self.slow
        out = PretendedDevice.apply(self.model(values), seconds, self.options["backward"])
        return nn.functional.mse_loss(out, target)

    def backward(self, loss: torch.Tensor, first: bool) -> None:
        """Stamp what backward takes after the device's work: waiting for other ranks."""
        loss.backward()
        if WORLD > 1 and not first:
            self.stamps.state("wait_communication", PretendedDevice.backward_done)
            self.stamps.state("productive")

    def save(self, step: int) -> None:
        """Save by rank 0 while the other ranks wait."""
        self.stamps.state("checkpoint")
        if RANK == 0:
            state = {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
            state["ballast"] = torch.zeros(1 << 18)
            with SlowDisk(Path("checkpoint.new"), self.options.get("save_s", 0.3), 1 << 20) as file:
                torch.save(state, file)
            Path("checkpoint.new").rename("checkpoint.pt")
        if WORLD > 1:
            dist.barrier()
        self.stamps.event("saved", step)

    def evaluate(self) -> None:
        self.stamps.state("evaluation")
        self.model.eval()
        with torch.no_grad():
            for batch in self.loader(self.options["eval_batches"]):
                self.loss(batch)
        self.model.train()

    def fail(self, step: int) -> None:
        """Hang or crash, if the configuration plants that in this step of this attempt."""
        hang, crash = self.options.get("hang"), self.options.get("crash")
        if hang and hang["step"] == step and hang["rank"] == RANK and ATTEMPT == 0:
            self.stamps.state("hang")
            time.sleep(hang["seconds"])
            self.stamps.state("productive")
        if crash and crash["step"] == step and crash["rank"] == RANK and ATTEMPT == 0:
            self.stamps.event("crash", step)
            raise RuntimeError("planted crash")

    def run(self) -> None:
        options, stamps = self.options, self.stamps
        accumulate = options.get("accumulate", 1)
        stamps.state("compile")
        batches = iter(self.loader((options["steps"] - self.start) * accumulate, options.get("load_s", 0.0)))
        for step in range(self.start + 1, options["steps"] + 1):
            first = step == self.start + 1
            for part in range(accumulate):
                if not first:
                    stamps.state("wait_data")
                batch = next(batches)
                if not first:
                    stamps.state("productive")
                if part == 0:
                    self.fail(step)
                whole = contextlib.nullcontext()
                if isinstance(self.model, nn.parallel.DistributedDataParallel) and part < accumulate - 1:
                    whole = self.model.no_sync()
                with whole:
                    self.backward(self.loss(batch) / accumulate, first or part < accumulate - 1)
            nn.utils.clip_grad_norm_(self.plain.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            stamps.event("step", step)
            if options.get("eval_every") and step % options["eval_every"] == 0:
                self.evaluate()
            if options.get("save_every") and step % options["save_every"] == 0:
                self.save(step)
            stamps.state("productive")
        stamps.state("other")


def main() -> None:
    stamps = Stamps()
    training = Training(json.loads(Path(sys.argv[1]).read_text()), stamps)
    training.run()
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
